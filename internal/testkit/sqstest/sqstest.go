// Package sqstest is a stand-in for a queue of SQS. It is a server with the calls that workers make, and has visibility
// timeouts and receive counts, in real time. Only tests import it.
package sqstest

import (
	"crypto/md5" //nolint:gosec // the checksum of SQS's protocol
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Queue is a standard queue without a redrive policy. It speaks SQS's JSON protocol.
type Queue struct {
	Endpoint string // for AWS_ENDPOINT_URL_SQS
	URL      string // of the queue

	mu       sync.Mutex
	messages []*Message
	refused  string // if not empty, each call fails with this code
}

// Message is a message of a queue.
type Message struct {
	Body     string
	Received int  // how often it was received
	Deleted  bool // it was deleted, by the receipt handle of its latest receive

	visible time.Time
}

// Start starts a queue on a loopback port, until the test ends.
func Start(tb testing.TB) *Queue {
	q := &Queue{}
	s := httptest.NewServer(q)
	tb.Cleanup(s.Close)
	q.Endpoint, q.URL = s.URL, s.URL+"/123456789012/jobs"
	return q
}

// Send sends messages with these bodies.
func (q *Queue) Send(bodies ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range bodies {
		q.messages = append(q.messages, &Message{Body: b})
	}
}

// Refuse makes each further call fail with an error code of SQS, or none if code is "".
func (q *Queue) Refuse(code string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused = code
}

// Messages returns all messages that were sent, in their order.
func (q *Queue) Messages() []Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := make([]Message, len(q.messages))
	for i, m := range q.messages {
		all[i] = *m
	}
	return all
}

// ServeHTTP implements [http.Handler].
func (q *Queue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		QueueURL            string `json:"QueueUrl"`
		ReceiptHandle       string
		MaxNumberOfMessages int
		VisibilityTimeout   int
	}
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	refused := q.refused
	if in.QueueURL != q.URL {
		refused = "AWS.SimpleQueueService.NonExistentQueue"
	}
	if refused != "" {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"__type":"com.amazonaws.sqs#%s","message":"refused by the test"}`, refused)
		return
	}
	var out any = struct{}{}
	visible := time.Now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
	switch action {
	case "ReceiveMessage":
		out = q.receive(in.MaxNumberOfMessages, visible)
	case "DeleteMessage":
		if m := q.of(in.ReceiptHandle); m != nil {
			m.Deleted = true
		}
	case "ChangeMessageVisibility":
		if m := q.of(in.ReceiptHandle); m != nil {
			m.visible = visible
		}
	default:
		http.Error(w, "the test's queue does not know "+action, http.StatusNotImplemented)
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (q *Queue) receive(n int, visible time.Time) any {
	var all []map[string]any
	for i, m := range q.messages {
		if len(all) == n || m.Deleted || time.Now().Before(m.visible) {
			continue
		}
		m.Received++
		m.visible = visible
		sum := md5.Sum([]byte(m.Body)) //nolint:gosec // as above
		all = append(all, map[string]any{"MessageId": strconv.Itoa(i), "Body": m.Body,
			"ReceiptHandle": fmt.Sprintf("%d.%d", i, m.Received), "MD5OfBody": hex.EncodeToString(sum[:]),
			"Attributes": map[string]string{"ApproximateReceiveCount": strconv.Itoa(m.Received)}})
	}
	return map[string]any{"Messages": all}
}

// of returns the message of a receipt handle, or nil if it was received again since.
func (q *Queue) of(handle string) *Message {
	for i, m := range q.messages {
		if handle == fmt.Sprintf("%d.%d", i, m.Received) {
			return m
		}
	}
	return nil
}
