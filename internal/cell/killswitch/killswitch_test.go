package killswitch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/appconfigdata"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/cell/killswitch"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/killswitchtest"
)

// Guarantees that nothing runs after Close, since a Lambda function that must end has little time.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wait is Config.Wait in these tests.
const wait = 50 * time.Millisecond

// world is a switch with the SDK's own client, which calls a local substitute for AppConfig without a network, so that
// time can be virtual.
type world struct {
	*killswitch.Switch
	t       *testing.T
	service killswitchtest.AppConfig
	made    int // number of clients made

	mu  sync.Mutex
	log bytes.Buffer
}

// RoundTrip passes a call to the substitute. It ends with its context, as a call over a network does.
func (w *world) RoundTrip(r *http.Request) (response *http.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler { //nolint:errorlint // the panic value is this error itself
				panic(p)
			}
			response, err = nil, errors.New("the connection was closed")
		}
	}()
	out := httptest.NewRecorder()
	w.service.ServeHTTP(out, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return out.Result(), nil
}

func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.Contains(p, []byte("not-to-be-seen")) {
		w.t.Errorf("a line holds a token or a part of a document: %s", p)
	}
	return w.log.Write(p)
}

// lines returns the number of log lines with this text.
func (w *world) lines(text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.log.String(), text)
}

// runInVirtualTime runs a test of a switch in virtual time.
func runInVirtualTime(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t}
		var err error
		w.Switch, err = killswitch.New(killswitch.Config{
			Application: killswitchtest.Application, Environment: killswitchtest.Environment,
			Profile: killswitchtest.Profile, Wait: wait,
			Log: slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Client: func() killswitch.Client {
				w.made++
				return appconfigdata.New(appconfigdata.Options{
					Region: "eu-west-1", HTTPClient: &http.Client{Transport: w},
					BaseEndpoint: aws.String("http://appconfig.example"),
					Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
						return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "not-to-be-seen-key"}, nil
					}),
				})
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		test(t, w)
	})
}

// poll makes a call of Poll, and returns how long it waited.
func (w *world) poll() time.Duration {
	began := time.Now()
	w.Poll(w.t.Context(), began)
	return time.Since(began)
}

// callOften makes ten calls in each second.
func (w *world) callOften(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.poll()
		<-time.After(100 * time.Millisecond)
	}
}

func (w *world) wantMode(want limit.Mode) {
	w.t.Helper()
	if got := w.Mode(); got != want {
		w.t.Errorf("the mode is %s, want %s", got, want)
	}
}

func document(m limit.Mode) string { return fmt.Sprintf(`{"mode":%q}`, m) }

// Guarantees that a busy environment has a new mode within 18 s, as the documentation states, and that AppConfig is
// not asked more often than it allows.
func TestBusyHearsWithinTheBound(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, w *world) {
		w.wantMode(limit.Enforce)
		if w.made != 0 {
			t.Error("a client is made before the first poll, want none")
		}
		w.service.Set(document(limit.Enforce))
		began := time.Now()
		w.callOften(time.Second)
		for i, mode := range []limit.Mode{limit.Shadow, limit.Off, limit.Enforce, limit.Shadow} {
			w.callOften(time.Duration(i) * 4 * time.Second) // at various times between two polls
			w.service.Set(document(mode))
			w.callOften(18*time.Second + 200*time.Millisecond)
			w.wantMode(mode)
		}
		if n, most := w.service.Calls(killswitchtest.Configuration),
			int(time.Since(began)/(15*time.Second))+1; n > most || n < 4 {
			t.Errorf("asked %d times in %s, want at most %d", n, time.Since(began), most)
		}
		if n := w.service.Calls(killswitchtest.Session); n != 1 || w.made != 1 || w.Failures() != 0 {
			t.Errorf("%d sessions, %d clients and %d failures, want one session", n, w.made, w.Failures())
		}
		if n := w.lines("the kill switch was set"); n != 4 {
			t.Errorf("%d lines, want one for each change", n)
		}
	})
}

// Guarantees that AppConfig is asked as rarely as it wants.
func TestIntervalIsTheServices(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, w *world) {
		w.service.Interval = 5 * time.Minute
		w.service.Set(document(limit.Shadow))
		w.callOften(14 * time.Minute)
		if n := w.service.Calls(killswitchtest.Configuration); n != 3 || w.Failures() != 0 {
			t.Errorf("asked %d times in 14 min, %d of them too early; want 3 times", n, w.Failures())
		}
		w.wantMode(limit.Shadow)
	})
}

// Guarantees that an environment that thaws reads the mode beside its first call, however long it was frozen: after a
// day its session has expired, and another one begins.
func TestThawHearsAtOnce(t *testing.T) {
	for _, frozen := range []time.Duration{time.Minute, time.Hour, 25 * time.Hour} {
		runInVirtualTime(t, func(t *testing.T, w *world) {
			w.service.Set(document(limit.Enforce))
			w.poll()
			w.service.Set(document(limit.Off))
			<-time.After(frozen)
			w.wantMode(limit.Enforce)
			w.poll()
			w.wantMode(limit.Off)
			if w.Failures() != 0 {
				t.Errorf("%d failures after a freeze of %s, want none", w.Failures(), frozen)
			}
		})
	}
}

// Guarantees that a poll that a freeze has cut is abandoned when the environment thaws, and does not prevent another.
func TestFreezeWithinAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &hangsAtFirst{}
		s, err := killswitch.New(killswitch.Config{Application: "a", Environment: "e", Profile: "p", Wait: wait,
			Client: func() killswitch.Client { return c }, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		now := time.Now()
		s.Poll(t.Context(), now)
		if c.begun.Load() != 1 || s.Mode() != limit.Enforce {
			t.Fatalf("%d sessions, mode %s; want one session, and enforce", c.begun.Load(), s.Mode())
		}
		// The wall clock advances while the process and its monotonic clock stand still.
		s.Poll(t.Context(), now.Round(0).Add(time.Hour))
		if c.begun.Load() != 2 || s.Mode() != limit.Off {
			t.Errorf("%d sessions, mode %s; want a second one, and off", c.begun.Load(), s.Mode())
		}
	})
}

// hangsAtFirst is a client whose first call never returns by itself.
type hangsAtFirst struct{ begun atomic.Int64 }

func (c *hangsAtFirst) StartConfigurationSession(
	ctx context.Context, _ *appconfigdata.StartConfigurationSessionInput, _ ...func(*appconfigdata.Options),
) (*appconfigdata.StartConfigurationSessionOutput, error) {
	if c.begun.Add(1) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &appconfigdata.StartConfigurationSessionOutput{InitialConfigurationToken: aws.String("t")}, nil
}

func (c *hangsAtFirst) GetLatestConfiguration(
	context.Context, *appconfigdata.GetLatestConfigurationInput, ...func(*appconfigdata.Options),
) (*appconfigdata.GetLatestConfigurationOutput, error) {
	return &appconfigdata.GetLatestConfigurationOutput{Configuration: []byte(`{"mode":"off"}`)}, nil
}

// faults are the ways in which AppConfig can fail.
var faults = map[string]killswitchtest.Fault{
	"down": killswitchtest.Down(), "throttles": killswitchtest.Throttled(), "drops": {Drop: true},
	"hangs": {Hang: true}, "slow": {Delay: time.Minute},
	"no access": {Code: "AccessDeniedException", Message: "User is not authorized",
		Status: http.StatusForbidden},
	"rubbish in 500":     {Body: "<html>not-to-be-seen", Status: http.StatusInternalServerError},
	"rubbish in session": {On: killswitchtest.Session, Body: "<html>not-to-be-seen"},
	"no token":           {On: killswitchtest.Session, Body: "{}"},
	"no session":         {On: killswitchtest.Session, Code: "ResourceNotFoundException", Status: http.StatusNotFound},
	"no environment": {On: killswitchtest.Session, Code: "ResourceNotFoundException", Missing: "Environment",
		Status: http.StatusNotFound},
	"bad requests": {Code: "BadRequestException", Message: "it is bad", Status: http.StatusBadRequest},
}

// Guarantees that for any fault of AppConfig the mode stays the last one that was read, and that the fault is logged
// once, counted, and ends with its cause.
func TestFaultsKeepTheMode(t *testing.T) {
	for name, fault := range faults {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, heard before: %v", name, known), func(t *testing.T) {
				runInVirtualTime(t, func(t *testing.T, w *world) {
					want := limit.Enforce
					if known {
						want = limit.Shadow
						w.service.Set(document(want))
						w.callOften(time.Second)
						w.wantMode(want)
					}
					w.service.Expire() // so that sessions are begun too
					w.service.Fail(fault, -1)
					w.service.Set(document(limit.Off))
					w.callOften(3 * time.Minute)
					w.wantMode(want)
					failures := w.Failures()
					if failures < 3 || w.lines("the kill switch cannot be read") != 1 {
						t.Errorf("%d failures, %d lines; want several, and one line", failures,
							w.lines("the kill switch cannot be read"))
					}
					w.service.Fail(killswitchtest.Fault{}, 0)
					w.callOften(72*time.Second + 200*time.Millisecond)
					w.wantMode(limit.Off)
					if w.Failures() > failures+1 || w.lines("can be read again") != 1 {
						t.Errorf("%d failures after %d, %d lines; want none after the fault, and one line",
							w.Failures(), failures, w.lines("can be read again"))
					}
				})
			})
		}
	}
}

// Guarantees that limits are enforced where no mode is deployed, and that this is no fault, whichever call says it:
// a new cell has no deployment, and AppConfig takes back a first deployment during which an alarm has no data.
func TestNothingDeployedEnforces(t *testing.T) {
	for _, on := range []string{killswitchtest.Session, killswitchtest.Configuration} {
		for _, missing := range []string{"Deployment", "Configuration"} {
			for _, mode := range []limit.Mode{limit.Enforce, limit.Shadow, limit.Off} {
				runInVirtualTime(t, func(t *testing.T, w *world) {
					nothing := killswitchtest.Fault{On: on, Code: "ResourceNotFoundException", Missing: missing,
						Status: http.StatusNotFound}
					w.service.Fail(nothing, -1)
					w.callOften(3 * time.Minute)
					w.wantMode(limit.Enforce)
					w.service.Fail(killswitchtest.Fault{}, 0)
					w.service.Set(document(mode))
					w.callOften(18*time.Second + 200*time.Millisecond)
					w.wantMode(mode)
					w.service.Undeploy()
					w.service.Fail(nothing, -1)
					w.service.Expire()
					w.callOften(18*time.Second + 200*time.Millisecond)
					w.wantMode(limit.Enforce)
					if n, lines := w.Failures(), w.lines("the kill switch cannot be read"); n != 0 || lines != 0 {
						t.Errorf("%s says that there is no %s: %d failures and %d lines, want none", on, missing, n,
							lines)
					}
					if n := w.service.Calls(killswitchtest.Session); n > 16 {
						t.Errorf("%d sessions begun in 216 s, want one in 15 s", n)
					}
				})
			}
		}
	}
}

// Guarantees that a lost answer loses no mode: its token is used up, and a new session has the whole document again.
func TestLostAnswer(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, w *world) {
		w.service.Set(document(limit.Enforce))
		w.callOften(time.Second)
		w.service.Fail(killswitchtest.Fault{Lose: true, On: killswitchtest.Configuration}, 1)
		w.service.Set(document(limit.Shadow))
		w.callOften(20 * time.Second)
		w.wantMode(limit.Shadow)
		if n := w.service.Calls(killswitchtest.Session); n != 2 || w.Failures() != 0 {
			t.Errorf("%d sessions, %d failures; want a second session within the same poll", n, w.Failures())
		}
	})
}

// Guarantees that an unusable document leaves the mode unchanged for as long as it exists: it is logged once, counted
// at each poll, never shown, and the next valid document is read as usual.
func TestBadDocumentKeepsTheMode(t *testing.T) {
	for _, bad := range []string{`{"mode":"not-to-be-seen"}`, `{"mode":"off","not-to-be-seen":1}`, "not-to-be-seen",
		"", `{"mode":"off"`, strings.Repeat("x", 1<<20)} {
		for _, known := range []bool{true, false} {
			runInVirtualTime(t, func(t *testing.T, w *world) {
				want := limit.Enforce
				if known {
					want = limit.Shadow
					w.service.Set(document(want))
					w.callOften(time.Second)
				}
				w.service.Set(bad)
				w.service.Expire() // an empty document differs from "unchanged" only in a new session
				w.callOften(2 * time.Minute)
				w.wantMode(want)
				if n := w.Failures(); n < 6 || w.lines("level=ERROR") != 1 {
					t.Errorf("%.40q: %d counted, %d lines; want each poll, and one line", bad, n,
						w.lines("level=ERROR"))
				}
				w.service.Expire()
				w.callOften(time.Minute)
				if n := w.lines("level=ERROR"); n != 1 {
					t.Errorf("the document %.40q has %d log lines, want one", bad, n)
				}
				w.service.Set(bad + " ")
				w.callOften(20 * time.Second)
				w.service.Set(document(limit.Off))
				w.callOften(18*time.Second + 200*time.Millisecond)
				w.wantMode(limit.Off)
				n := w.Failures()
				w.callOften(time.Minute)
				if w.Failures() != n {
					t.Errorf("the document %.40q is still counted after a valid one has replaced it", bad)
				}
			})
		}
	}
}

// Guarantees that an AppConfig that hangs delays one call briefly, and not every call.
func TestPollHoldsNobodyUp(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, w *world) {
		w.service.Fail(killswitchtest.Fault{Hang: true}, -1)
		w.Begin(time.Now())
		if w.Mode() != limit.Enforce {
			t.Error("the mode is not enforce before the first answer: the poll must not wait for it")
		}
		held, longest, calls := time.Duration(0), time.Duration(0), 0
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); calls++ {
			took := w.poll()
			held += took
			longest = max(longest, took)
			<-time.After(10 * time.Millisecond)
		}
		if held > wait || longest == 0 || calls < 100 {
			t.Errorf("%d calls were held up for %s together, want some, and at most %s", calls, held, wait)
		}
	})
}

// Guarantees that concurrent calls see one mode or the other, and share a poll.
func TestManyAtOnce(t *testing.T) {
	runInVirtualTime(t, func(t *testing.T, w *world) {
		w.service.Set(document(limit.Shadow))
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for range 20 {
					w.poll()
					if m := w.Mode(); m != limit.Shadow {
						t.Errorf("the mode after a poll is %s, want shadow", m)
					}
					<-time.After(time.Second)
				}
			})
		}
		all.Wait()
		if n := w.service.Calls(killswitchtest.Configuration); n != 2 {
			t.Errorf("asked %d times in 20 s, want 2", n)
		}
	})
}

// Guarantees that missing settings are named.
func TestConfig(t *testing.T) {
	client := func() killswitch.Client { return &hangsAtFirst{} }
	for want, c := range map[string]killswitch.Config{
		"Client":      {Application: "a", Environment: "e", Profile: "p", Wait: wait},
		"Application": {Client: client, Environment: "e", Profile: "p", Wait: wait},
		"Environment": {Client: client, Application: "a", Profile: "p", Wait: wait},
		"Profile":     {Client: client, Application: "a", Environment: "e", Wait: wait},
		"Wait":        {Client: client, Application: "a", Environment: "e", Profile: "p"},
	} {
		if _, err := killswitch.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", want, err)
		}
	}
}
