package devtoken

// CheckOwner says whether a file of a user is believed.
var CheckOwner = checkOwner
