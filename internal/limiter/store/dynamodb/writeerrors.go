package dynamodb

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// classifyWriteError returns the error of a write in the form in which the store reports it. If DynamoDB refused just
// this write, because of its size or of the item's contents, the error says that the store answered ([limit.Answered]).
// Other errors are returned unchanged.
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

// isConflict reports whether a transaction was writing the same item.
func isConflict(err error) bool {
	var busy *types.TransactionConflictException
	return errors.As(err, &busy)
}

// classifyValidationError tells by its message why DynamoDB found a write invalid. If the keys do not match the table's
// schema, no write can succeed: that remains an error of the store.
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
