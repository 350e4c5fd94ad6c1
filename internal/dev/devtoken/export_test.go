package devtoken

// CheckOwner reports whether a file of a user is accepted.
var CheckOwner = checkOwner
