"""The entry points: each is named in pyproject.toml."""

import os
import pathlib
import threading

from localstack.runtime import hooks
from localstack.services.lambda_.invocation.plugins import RuntimeExecutorPlugin


class ProcessExecutorPlugin(RuntimeExecutorPlugin):
    """Chosen by LAMBDA_RUNTIME_EXECUTOR=sluice."""

    name = "sluice"

    def load(self, *args, **kwargs):
        from sluice_localstack.executor import ProcessExecutor

        return ProcessExecutor


@hooks.on_infra_start(priority=100)  # before services are loaded
def sluice_patch() -> None:
    from sluice_localstack import dynamodb, patches

    patches.listen_on_loopback()
    patches.assign_environments_safely()
    patches.keep_no_invocation_records()
    patches.poll_at_once()
    dynamodb.run_from_jars()


@hooks.on_infra_ready(priority=-100)
def sluice_ready() -> None:
    """Says that it is up when every service is: the health page answers long before."""
    pathlib.Path(os.environ["SLUICE_READY_FILE"]).touch()


@hooks.on_infra_shutdown(priority=100)
def sluice_stop_functions() -> None:
    """Before anything else stops, so that functions can still reach what they hand back their leases to."""
    from localstack.runtime import events

    from sluice_localstack.executor import stop_all

    def leave() -> None:
        # The interpreter's own end is of no use to anyone, and can take a quarter of a minute where functions have run.
        events.infra_stopped.wait()
        os._exit(0)

    threading.Thread(target=leave, daemon=True, name="leave").start()
    stop_all()
