"""LocalStack's runtime executor that runs a function's bootstrap as a process of this machine.

An executor outlives its processes: one that ended or took too long is replaced for the next call, as Lambda does. Its folder,
SLUICE_LAMBDA_DIR/<function>-<id>, holds output.log, which stays, and tmp, which goes when it is stopped.
SLUICE_LAMBDA_FREEZE=0 lets idle processes run.
"""

import logging
import os
import shutil
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localstack import config
from localstack.runtime import events
from localstack.services.lambda_.invocation.executor_endpoint import NAMESPACE, ShutdownDuringStartup, StatusErrorException
from localstack.services.lambda_.invocation.lambda_models import FunctionVersion, InvocationResult
from localstack.services.lambda_.invocation.runtime_executor import RuntimeExecutor

from sluice_localstack.environment import Call, CannotStart, Environment
from sluice_localstack.runtimeapi import HOST, document

LOG = logging.getLogger(__name__)

INIT_TIMEOUT = 10  # seconds
TRIES = 3  # processes for a call that none of them has seen
# What LocalStack gives its containers beside what Lambda gives a function.
NOT_LAMBDAS = {"EDGE_PORT", "AWS_LAMBDA_FUNCTION_TIMEOUT", "AWS_EXECUTION_ENV", "LOCALSTACK_HOSTNAME", "LOCALSTACK_USER"}

_live: "weakref.WeakSet[ProcessExecutor]" = weakref.WeakSet()


def stop_all() -> None:
    """Stops every environment, all at the same time."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        list(pool.map(ProcessExecutor.stop, list(_live)))


class ProcessExecutor(RuntimeExecutor):
    def __init__(self, id: str, function_version: FunctionVersion) -> None:
        super().__init__(id, function_version)
        self.environment: Environment | None = None
        self.variables: dict[str, str] = {}
        self.stopped = False
        self.lock = threading.Lock()  # guards environment and stopped, held for moments only
        self.folder = Path(os.environ["SLUICE_LAMBDA_DIR"]) / f"{function_version.id.function_name}-{id[:12]}"
        self.log = self.folder / "output.log"

    def start(self, env_vars: dict[str, str]) -> None:
        tmp = self.folder / "tmp"
        tmp.mkdir(parents=True, exist_ok=True)
        own = self.function_version.config.environment or {}
        code = str(self._code())
        self.variables = {
            "LANG": "en_US.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/bin",
            # Not Lambda's: its functions have a /tmp and no home of their own. These keep them off this machine's.
            "TMPDIR": str(tmp),
            "HOME": str(tmp),
            **{
                name: str(value)
                for name, value in env_vars.items()
                if value is not None and (name in own or (name not in NOT_LAMBDAS and not name.startswith("LOCALSTACK_")))
            },
            "LAMBDA_TASK_ROOT": code,
            "LAMBDA_RUNTIME_DIR": code,
        }
        _live.add(self)
        self._spawn()

    def _code(self) -> Path:
        return Path(self.function_version.config.code.get_unzipped_code_location())

    def _spawn(self) -> Environment:
        version = self.function_version
        if self.stopped:
            raise ShutdownDuringStartup("the environment is stopped")
        try:
            environment = Environment(
                version.id.function_name,
                version.id.qualifier,
                self._code(),
                self.log,
                self.variables,
                os.environ.get("SLUICE_LAMBDA_FREEZE") != "0",
            )
        except CannotStart as e:
            raise StatusErrorException("bootstrap", payload=document("Runtime.InvalidEntrypoint", str(e))) from e
        with self.lock:
            self.environment = environment
        # stop may have been called before: it did not see this environment
        in_time = self.stopped or environment.await_init(INIT_TIMEOUT)
        if self.stopped:
            environment.kill()
            raise ShutdownDuringStartup("the environment was stopped while it started")
        if environment.ready:
            return environment
        environment.kill()
        if environment.init_error is not None:
            payload = environment.init_error
        elif in_time:
            payload = document("Runtime.ExitError", environment.exit_reason)
        else:
            payload = document("Sandbox.Timedout", f"Init timed out after {INIT_TIMEOUT:.2f} seconds")
        LOG.warning("%s: init failed; see %s", version.qualified_arn, self.log)
        raise StatusErrorException("init", payload=payload)

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            environment, self.environment = self.environment, None
        if environment:
            # Calls in flight end as they would on Lambda when a function is updated, but not when LocalStack itself ends.
            environment.stop(0 if events.infra_stopping.is_set() else float(self.function_version.config.timeout))
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)

    def invoke(self, payload: dict[str, str]) -> InvocationResult:
        request_id = payload["invoke-id"]
        offset = self.log.stat().st_size if self.log.exists() else 0
        began = time.monotonic()
        try:
            call = self._call(payload)
            body, is_error = call.body, call.is_error
        except StatusErrorException as e:
            body, is_error = e.payload, True
        milliseconds = (time.monotonic() - began) * 1000
        version = self.function_version
        output = self._output(offset)
        if is_error:
            output += f"{request_id} {body[:1000].decode(errors='replace')}\n"
        return InvocationResult(
            request_id,
            body,
            is_error=is_error,
            logs=f"START RequestId: {request_id} Version: {version.id.qualifier}\n{output}END RequestId: {request_id}\n"
            f"REPORT RequestId: {request_id}\tDuration: {milliseconds:.2f} ms\tBilled Duration: {int(milliseconds) + 1} ms\t"
            f"Memory Size: {version.config.memory_size} MB\tMax Memory Used: {version.config.memory_size} MB\t\n",
        )

    def _call(self, payload: dict[str, str]) -> Call:
        """A process that ended after its last answer never saw this call: another one is started for it."""
        timeout = float(self.function_version.config.timeout)
        for _ in range(TRIES):
            environment = self.environment
            if not environment or environment.ended:
                environment = self._spawn()
            call = Call(payload["invoke-id"], payload["payload"].encode(), payload["invoked-function-arn"], payload["trace-id"], timeout)
            if not environment.give(call):
                continue
            if not call.done.wait(timeout):
                environment.time_out(call)
                return call
            if call.fetched:
                return call
        call.fail("Runtime.ExitError", f"{TRIES} processes ended before they took the call")
        return call

    def _output(self, offset: int) -> str:
        try:
            with open(self.log, "rb") as f:
                f.seek(offset)
                output = f.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return output if not output or output.endswith("\n") else output + "\n"

    def get_logs(self) -> str:
        return self._output(0)

    def get_address(self) -> str:
        return HOST

    def get_endpoint_from_executor(self) -> str:
        return HOST

    def get_runtime_endpoint(self) -> str:
        return f"http://{HOST}:{config.GATEWAY_LISTEN[0].port}{NAMESPACE}/{self.id}"

    @classmethod
    def prepare_version(cls, function_version: FunctionVersion) -> None:
        if function_version.config.code:
            function_version.config.code.prepare_for_execution()

    @classmethod
    def cleanup_version(cls, function_version: FunctionVersion) -> None:
        """The unpacked code is LocalStack's, and other versions' of the same archive."""

    @classmethod
    def validate_environment(cls) -> bool:
        return True
