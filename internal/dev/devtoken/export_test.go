package devtoken

// CheckOwnerID reports whether what belongs to a user is accepted.
var CheckOwnerID = checkOwner
