package applier

// AnyAcknowledger is visible to tests.
type AnyAcknowledger = acknowledger

// Concerned is visible to tests.
var Concerned = concerned
