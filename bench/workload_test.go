package bench

import "testing"

// A judge that lets a wrong limiter pass judges nothing: each mistake must show in the number that is for it.
func TestJudgeWorkload(t *testing.T) {
	us := workloadPeriod.Microseconds()
	var events []workloadEvent
	window := func(w int64, asked, admitted int) {
		for i := range asked {
			events = append(events, workloadEvent{At: w*us + int64(i), Allowed: i < admitted})
		}
	}
	window(1, 9, 0) // before what is measured
	window(2, 3, 1) // asked for less than the limit
	window(3, 9, 3) // one of four is missing
	window(4, 4, 0) // asked for no more than the limit
	window(5, 6, 4)
	s := judgeWorkload(events, 4, 2*us, 6*us)
	if s.ShortPct != 12.5 || s.Requests != 22 || s.Admitted != 8 || s.Over != 0 {
		t.Errorf("%+v, want 12.5 %% short of 22 requests, 8 admitted, 0 over", s)
	}
	if want := 100 * float64(2+6+4) / 22; s.EarlyPct != want {
		t.Errorf("%.3f %% early, want %.3f: each denial with units left", s.EarlyPct, want)
	}
	window(5, 1, 1)
	window(6, 6, 6) // after what is measured, where admissions above the limit count, too
	if s := judgeWorkload(events, 4, 2*us, 6*us); s.Over != 3 {
		t.Errorf("%d units over, want 3", s.Over)
	}
}
