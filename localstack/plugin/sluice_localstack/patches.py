"""Small changes to LocalStack 4.14.0, each with its reason."""

import contextlib
import threading
from collections.abc import Iterator

from localstack import config
from localstack.runtime.server import twisted
from localstack.services.lambda_.invocation.assignment import AssignmentException, AssignmentService
from localstack.services.lambda_.invocation.execution_environment import ExecutionEnvironment, InvalidStatusException
from localstack.services.lambda_.invocation.lambda_models import FunctionVersion, InitializationType
from localstack.services.lambda_.invocation.version_manager import LambdaVersionManager


def listen_on_loopback() -> None:
    """GATEWAY_LISTEN's host is ignored for IPv4: the gateway listens on every interface."""
    endpoint = twisted.endpoints.TCP4ServerEndpoint
    hosts = {listen.port: listen.host for listen in config.GATEWAY_LISTEN}

    def bound(reactor, port, *args, **kwargs):
        return endpoint(reactor, port, *args, **{"interface": hosts.get(port, "127.0.0.1"), **kwargs})

    twisted.endpoints.TCP4ServerEndpoint = bound


def assign_environments_safely() -> None:
    """Calls at the same time make each other fail: an environment can be taken by another between its start and its reservation,
    and one that is added breaks the search of another call. Both are a 500 that Lambda does not give.
    """
    lock = threading.Lock()

    @contextlib.contextmanager
    def get_environment(
        self: AssignmentService,
        version_manager_id: str,
        function_version: FunctionVersion,
        provisioning_type: InitializationType,
    ) -> Iterator[ExecutionEnvironment]:
        environment = None
        with lock:
            for candidate in list(self.environments[version_manager_id].values()):
                if candidate.initialization_type != provisioning_type:
                    continue
                with contextlib.suppress(InvalidStatusException):  # it is busy
                    candidate.reserve()
                    environment = candidate
                    break
        if environment is None:
            if provisioning_type == InitializationType.provisioned_concurrency:
                raise AssignmentException("No provisioned concurrency environment available despite lease.")
            environment = self.start_environment(version_manager_id, function_version)
            with lock:
                environment.reserve()
                self.environments[version_manager_id][environment.id] = environment
        try:
            yield environment
        except Exception:
            self.stop_environment(environment)
            raise
        with contextlib.suppress(InvalidStatusException):  # it was stopped in mid-call
            environment.release()

    AssignmentService.get_environment = get_environment


def poll_at_once() -> None:
    """The wait after the first poll that found nothing is a second, whatever the most that it may be is set to."""
    from localstack.services.lambda_.event_source_mapping import esm_worker

    backoff = esm_worker.ExponentialBackoff

    def bounded(initial_interval: float, max_interval: float):
        return backoff(initial_interval=min(initial_interval, max_interval), max_interval=max_interval)

    esm_worker.ExponentialBackoff = bounded


def keep_no_invocation_records() -> None:
    """Each call would be written to CloudWatch, as logs and as a metric, which takes more time than the call. What a function writes
    is in its environment's output.log.
    """
    from localstack.services.lambda_.invocation import version_manager

    LambdaVersionManager.store_logs = lambda self, invocation_result, execution_env: None
    version_manager.start_thread = _start_unless_metric(version_manager.start_thread)


def _start_unless_metric(start_thread):
    def start(method, *args, name=None, **kwargs):
        if name and name.startswith("record-cloudwatch-metric-"):
            return None
        return start_thread(method, *args, name=name, **kwargs)

    return start
