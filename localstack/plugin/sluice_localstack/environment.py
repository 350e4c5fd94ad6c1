"""One execution environment of a function: a process of its bootstrap, and its life.

Like Lambda's, it serves one call at a time and stands still in between: SIGSTOP when it asks for the next call and there is none,
SIGCONT when one comes. SIGTERM is for functions that registered an extension; they have 500 ms then. Others get SIGKILL.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from sluice_localstack.runtimeapi import MAX_RESPONSE, Gone, Refusal, Server, document

SETPRIV = shutil.which("setpriv") or "setpriv"  # found here, as the function's PATH is its own affair
GRACE = 0.5  # seconds from SIGTERM to SIGKILL


class CannotStart(Exception):
    """The bootstrap cannot be executed. The argument is why."""


class Call:
    """One invocation, from the moment it is given to an environment. Its other fields are guarded by the environment's lock."""

    def __init__(self, request_id: str, payload: bytes, arn: str, trace: str, timeout: float):
        self.request_id, self.payload, self.arn, self.trace, self.timeout = request_id, payload, arn, trace, timeout
        self.fetched = False  # the function has seen it
        self.body: bytes | None = None
        self.is_error = False
        self.done = threading.Event()

    def finish(self, body: bytes, is_error: bool) -> None:
        """The first answer counts."""
        if not self.done.is_set():
            self.body, self.is_error = body, is_error
            self.done.set()

    def fail(self, error_type: str, message: str) -> None:
        self.finish(document(error_type, f"RequestId: {self.request_id} Error: {message}"), True)

    def headers(self) -> dict[str, str]:
        return {
            "Lambda-Runtime-Aws-Request-Id": self.request_id,
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + self.timeout) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": self.arn,
            "Lambda-Runtime-Trace-Id": self.trace,
        }


class Environment:
    def __init__(self, name: str, version: str, code: Path, log: Path, variables: dict[str, str], freezes: bool):
        """Starts the process; raises CannotStart."""
        self.name, self.version = name, version
        self.log = log
        self.freezes = freezes
        self.lock = threading.Condition()  # guards what follows; notified when any of it changes
        self.ready = False  # it has polled
        self.init_error: bytes | None = None  # by its own report
        self.exit_reason = ""  # set when it has ended
        self.ended = False
        self.wants_term = False
        self.frozen = False
        self.poll: object | None = None  # the poll that waits, if one does
        self.waiting: Call | None = None  # not fetched yet
        self.current: Call | None = None  # fetched
        self.process: subprocess.Popen | None = None  # None when its number may be another's

        bootstrap = code / "bootstrap"
        try:
            with open(bootstrap, "rb") as f:
                if not f.read(4).startswith((b"\x7fELF", b"#!")):
                    raise CannotStart("bootstrap is neither a program of Linux nor a script")
        except OSError as e:
            raise CannotStart(f"bootstrap: {e.strerror}") from e
        if not os.access(bootstrap, os.X_OK):
            raise CannotStart("bootstrap is not executable")
        self.server = Server(self)
        started: list[OSError | None] = []
        variables = {**variables, "AWS_LAMBDA_RUNTIME_API": self.server.address}
        threading.Thread(target=self._live, args=(bootstrap, variables, started), daemon=True, name="environment").start()
        with self.lock:
            self.lock.wait_for(lambda: started)
        if error := started[0]:
            self.server.close()
            raise CannotStart(str(error))

    def _live(self, bootstrap: Path, variables: dict[str, str], started: list[OSError | None]) -> None:
        """Starts the process and waits for its end. Both are this thread's, as the kernel ends the process with the thread that started
        it: so none outlives LocalStack.
        """
        try:
            with open(self.log, "ab") as log:
                process = subprocess.Popen(
                    [SETPRIV, "--pdeathsig", "KILL", str(bootstrap)],
                    cwd=bootstrap.parent,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as e:
            with self.lock:
                started.append(e)
                self.lock.notify_all()
            return
        with self.lock:
            self.process = process
            started.append(None)
            self.lock.notify_all()
        self.note(f"started as process {process.pid}")
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self.lock:
            self._signal(signal.SIGKILL)  # what it started and left behind: the group keeps its number until it is reaped
            self.process = None
            code = process.wait()
            if code < 0:
                self.exit_reason = f"Runtime exited with error: signal: {signal.Signals(-code).name}"
            elif code:
                self.exit_reason = f"Runtime exited with error: exit status {code}"
            else:
                self.exit_reason = "Runtime exited without providing a reason"
            self.ended = True
            for call in (self.current, self.waiting):
                if call and not call.done.is_set():
                    call.fail("Runtime.ExitError", self.exit_reason)
            self.lock.notify_all()
        self.note(self.exit_reason)
        self.server.close()

    def note(self, text: str) -> None:
        """Writes a line of our own between those of the function."""
        with contextlib.suppress(OSError), open(self.log, "a") as log:  # the folder may be gone: LocalStack ends
            log.write(f"{time.strftime('%H:%M:%S')} environment: {text}\n")

    # What the executor does. All of it is safe from any thread.

    def await_init(self, timeout: float) -> bool:
        """Waits until the process polls, has failed or ended; False after timeout seconds."""
        with self.lock:
            return self.lock.wait_for(lambda: self.ready or self.init_error is not None or self.ended, timeout)

    def give(self, call: Call) -> bool:
        """Hands over a call, which is answered when call.done is set; False if the process has ended."""
        with self.lock:
            if self.ended:
                return False
            self.waiting = call
            self._thaw()
            self.lock.notify_all()
            return True

    def time_out(self, call: Call) -> None:
        """Ends a call that took too long, and the process with it, unless it was answered just now."""
        with self.lock:
            if call.done.is_set():
                return
            call.fail("Sandbox.Timedout", f"Task timed out after {call.timeout:.2f} seconds")
        self.note(f"{call.request_id} timed out")
        self.kill()

    def stop(self, patience: float) -> None:
        """Ends the process: a call that it has may take patience seconds more."""
        with self.lock:
            self.lock.wait_for(lambda: self.ended or not self._busy(), patience)
            gently = self.wants_term and not self.ended
            if gently:
                self._signal(signal.SIGTERM)
                self._thaw()
                self.lock.wait_for(lambda: self.ended, GRACE)
                gently = self.ended
        if not gently:
            self.kill()

    def kill(self) -> None:
        with self.lock:
            self._signal(signal.SIGKILL)
            self.lock.wait_for(lambda: self.ended, 5)

    def _busy(self) -> bool:
        return any(call and not call.done.is_set() for call in (self.waiting, self.current))

    def _signal(self, number: signal.Signals) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            self._signal(signal.SIGCONT)

    # What the Runtime API does.

    def next(self) -> Call:
        with self.lock:
            if self.current and not self.current.done.is_set():
                raise Refusal(403, "InvalidStateTransition", "The call before has no answer yet")
            self.ready = True
            poll = self.poll = object()
            if not self.waiting and self.freezes and not self.frozen:
                self.frozen = True
                self._signal(signal.SIGSTOP)
            self.lock.notify_all()
            self.lock.wait_for(lambda: self.waiting or self.ended or self.poll is not poll)
            if self.ended:
                raise Gone
            if self.poll is not poll:
                raise Refusal(403, "InvalidStateTransition", "Another poll took the place of this one")
            self.current, self.waiting, self.poll = self.waiting, None, None
            self.current.fetched = True
            return self.current

    def answer(self, request_id: str, body: bytes, is_error: bool) -> None:
        with self.lock:
            call = self.current
            if not call or call.request_id != request_id or call.done.is_set():
                raise Refusal(400, "InvalidRequestID", "Invalid request ID")
            if not is_error and len(body) > MAX_RESPONSE:
                message = f"Response payload size exceeded maximum allowed payload size ({MAX_RESPONSE} bytes)."
                call.finish(document("Function.ResponseSizeTooLarge", message), True)
                raise Refusal(413, "RequestEntityTooLarge", message)
            call.finish(body, is_error)
            self.lock.notify_all()

    def init_failed(self, body: bytes) -> None:
        with self.lock:
            if self.ready:
                raise Refusal(403, "InvalidStateTransition", "The init is over")
            self.init_error = body
            self.lock.notify_all()

    def register(self) -> None:
        with self.lock:
            if self.ready:
                raise Refusal(403, "InvalidStateTransition", "The init is over")
            self.wants_term = True

    def await_end(self) -> None:
        with self.lock:
            self.lock.wait_for(lambda: self.ended)
        raise Gone
