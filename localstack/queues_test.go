package localstack_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sluicelimits/sluice/localstack/stand"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// takeDeadLetters waits until a queue of dead letters has n different items that are ours, removes them from it, and
// returns them. Other items stay.
func takeDeadLetters(
	t *testing.T, s *stand.Stand, by, region, queue string, n int, ours func(*delivery.DeadLetter) bool,
) []delivery.DeadLetter {
	t.Helper()
	url, err := s.Queue(t.Context(), region, queue)
	if err != nil {
		t.Fatal(err)
	}
	client := sqs.NewFromConfig(s.AWS(region))
	found := map[string]delivery.DeadLetter{}
	waitFor(t, func(ctx context.Context) error {
		out, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 10,
			VisibilityTimeout: 2})
		if err != nil {
			return err
		}
		for _, m := range out.Messages {
			i, _, err := delivery.DecodeDeadLetter([]byte(*m.Body))
			if err != nil {
				return fmt.Errorf("%s: %w: %.200q", queue, err, *m.Body)
			}
			if !ours(&i) {
				continue
			}
			if i.By != by || i.Reason == "" || i.At.IsZero() {
				t.Errorf("%s has %+v, want it by %s, and why", queue, i, by)
			}
			found[i.ID] = i
			if _, err := client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url,
				ReceiptHandle: m.ReceiptHandle}); err != nil {
				return err
			}
		}
		if len(found) != n {
			return fmt.Errorf("%s has kept %d of ours, want %d", queue, len(found), n)
		}
		return nil
	})
	all := make([]delivery.DeadLetter, 0, n)
	for _, i := range found {
		all = append(all, i)
	}
	return all
}

// waitForEmptyQueues waits until the queues of changes are empty. It fails the test if a queue of dead letters has a
// message: a test that causes dead letters removes them.
func waitForEmptyQueues(t *testing.T, s *stand.Stand) {
	t.Helper()
	type place struct{ region, queue string }
	var changes []place
	wrong := []place{{s.Region(), s.ControlTable("kept")}, {s.Region(), s.ControlTable("failed")},
		{s.Region(), s.ControlTable("undelivered")}}
	for _, c := range s.Cells() {
		changes = append(changes, place{c.Region, c.Table("changes")})
		wrong = append(wrong, place{c.Region, c.Table("kept")}, place{c.Region, c.Table("refused")})
	}
	waitFor(t, func(ctx context.Context) error {
		for _, p := range changes {
			n, err := s.Waiting(ctx, p.region, p.queue)
			if err == nil && n > 0 {
				err = fmt.Errorf("%d messages are in %s", n, p.queue)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	for _, p := range wrong {
		if n, err := s.Waiting(t.Context(), p.region, p.queue); err != nil || n > 0 {
			t.Errorf("%d dead letters are in %s: %v", n, p.queue, err)
		}
	}
}
