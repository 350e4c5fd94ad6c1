package dynamodb

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/limit"
)

// refusal says of an error of a write what it is about. Where DynamoDB refuses this one write, for its size or for what the
// item holds, the error is one of those that say the store answered; see [limit.Answered]. Others are returned as they are.
func classifyWriteError(err error) error {
	var api smithy.APIError
	switch {
	case isConflict(err):
		return fmt.Errorf("%w: %w", ErrUndecided, err)
	case errors.As(err, &api) && api.ErrorCode() == "ValidationException":
		return classifyValidationError(err, api.ErrorMessage())
	}
	return err
}

// isConflict reports whether a transaction was at the item.
func isConflict(err error) bool {
	var busy *types.TransactionConflictException
	return errors.As(err, &busy)
}

// invalid says what a write that DynamoDB did not validate is, by the message. That the keys are not the table's holds for
// every write: it stays an error of the store.
func classifyValidationError(err error, message string) error {
	switch {
	case strings.Contains(message, "schema"):
		return err
	case strings.Contains(message, "exceed"), strings.Contains(message, "too many"):
		return fmt.Errorf("%w: %w", limit.ErrTooLarge, err)
	default:
		return fmt.Errorf("%w: %w", ErrBadItem, err)
	}
}
