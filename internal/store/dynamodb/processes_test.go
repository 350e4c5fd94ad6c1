package dynamodb_test

const childEnv = "SLUICE_TEST_CHILD"

func child() int { return 0 }
