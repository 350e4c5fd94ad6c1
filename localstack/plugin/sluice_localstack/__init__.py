"""What LocalStack lacks to run without Docker. Started by localstack/up, which sets the environment variables that it reads."""
