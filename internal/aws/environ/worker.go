package environ

import "time"

// Worker holds the settings of a worker.
type Worker struct {
	Common
	Queue      string // URL
	Target     string // name or ARN of a function
	Limit      string // in the form that package pacer reads
	Spread     bool
	Parallel   int
	Visibility time.Duration // in whole seconds
	ClockError time.Duration // the largest difference of the provider's clock, in either direction
	MaxDelay   time.Duration // the longest time until a request arrives at the provider
}

const (
	maxParallel   = 1000
	minVisibility = 10 * time.Second
	maxVisibility = 5 * time.Minute // so that most of a call of 15 minutes receives messages
	maxGuard      = time.Minute     // as long as the longest period of the limit
)

var (
	functionName = shape{":_$-", 1, 256} // or an ARN
	limitText    = shape{"./", 3, 64}
)

// ParseWorker reads a worker's settings, as Parse does.
func ParseWorker(environ []string) (*Worker, error) {
	s := &Worker{}
	return parse("worker", environ, s, s.variables())
}

func (s *Worker) variables() []variable {
	return append([]variable{
		{"SLUICE_QUEUE", "", true, "URL of the SQS queue whose messages are handled.",
			func(v string) string { return match(&s.Queue, v, queueURL, "the URL of a queue") }},
		{"SLUICE_TARGET", "", true, "The function that handles a message: its name or ARN.",
			func(v string) string { return match(&s.Target, v, functionName, "a function's name or ARN") }},
		{"SLUICE_LIMIT", "", true, "How many messages are handled in a period of at most a minute: `100/s`, " +
			"`5000/m`, `10/500ms`.",
			func(v string) string { return match(&s.Limit, v, limitText, "a limit such as 100/s") }},
		{"SLUICE_SPREAD", "false", false, "`true` spreads messages evenly over each period.",
			func(v string) string { return boolean(&s.Spread, v) }},
		{"SLUICE_PARALLEL", "10", false, "How many messages are handled at once, and so how many calls of the target " +
			"there are.",
			func(v string) string { return integer(&s.Parallel, v, 1, maxParallel) }},
		{"SLUICE_CLOCK_ERROR", "0s", false, "By how much the provider's clock and AWS's may differ, in either " +
			"direction. Twice this and `SLUICE_MAX_DELAY` must be less than the period of the limit.",
			func(v string) string { return within(&s.ClockError, v, 0, maxGuard) }},
		{"SLUICE_MAX_DELAY", "0s", false, "How long a request may take from the call of the target until it " +
			"arrives at the provider, with the start of the target.",
			func(v string) string { return within(&s.MaxDelay, v, 0, maxGuard) }},
		{"SLUICE_VISIBILITY", "30s", false, "How long a received message is hidden from others, and how long the " +
			"target may take.",
			func(v string) string {
				text := within(&s.Visibility, v, minVisibility, maxVisibility)
				if text == "" && s.Visibility%time.Second != 0 {
					text = "must be in whole seconds"
				}
				return text
			}},
	}, s.common()...)
}
