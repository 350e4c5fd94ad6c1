package doctor

var Clip = clip
