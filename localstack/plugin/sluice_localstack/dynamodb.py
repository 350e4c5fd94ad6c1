"""DynamoDB Local from Maven's jars (SLUICE_DYNAMODB_JARS) instead of LocalStack's own download.

Its own main listens on every interface. SLUICE_DYNAMODB_MAIN is a Java source file whose main listens on the loopback address:
its arguments are the port and "separate", for tables apart by account and region.
"""

import os

from localstack.services.dynamodb.packages import DynamoDBLocalPackageInstaller
from localstack.services.dynamodb.server import DynamodbServer


def run_from_jars() -> None:
    jars, main = os.environ["SLUICE_DYNAMODB_JARS"], os.environ["SLUICE_DYNAMODB_MAIN"]

    def command(server: DynamodbServer) -> list[str]:
        return [
            # If LocalStack is killed the JVM goes with it. The kernel goes by the thread that started it, which lives as long.
            *("setpriv", "--pdeathsig", "KILL", "java"),
            *server._get_java_vm_options(),
            f"-Xmx{server.heap_size}",
            f"-Dsqlite4java.library.path={jars}",
            "-Dorg.eclipse.jetty.LEVEL=WARN",
            "-XX:TieredStopAtLevel=1",  # most of its processor time is its own start
            *("-cp", f"{jars}/*", main, str(server.port), "separate"),
        ]

    DynamoDBLocalPackageInstaller.get_installed_dir = lambda self: jars
    DynamoDBLocalPackageInstaller.get_java_env_vars = lambda self: {}
    DynamodbServer._create_shell_command = command
