package dynamodbtest

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// errType is the error for an attribute of a type that no item of this repository has.
var errType = errors.New("an attribute of an unknown type")

// Value is an attribute in the JSON form of DynamoDB's own API: {"S": "text"}, {"N": "1"}, {"B": base64}, {"BOOL":
// true}, {"M": {…}}, {"L": […]}.
type Value struct{ types.AttributeValue }

// Item is an item in that JSON form, for fixtures.
type Item map[string]Value

// ItemOf returns the JSON form of an item of the SDK.
func ItemOf(attributes map[string]types.AttributeValue) Item {
	item := make(Item, len(attributes))
	for name, v := range attributes {
		item[name] = Value{v}
	}
	return item
}

// Attributes returns the item in the form of the SDK.
func (i Item) Attributes() map[string]types.AttributeValue {
	out := make(map[string]types.AttributeValue, len(i))
	for name, v := range i {
		out[name] = v.AttributeValue
	}
	return out
}

// MarshalJSON implements [json.Marshaler].
func (v Value) MarshalJSON() ([]byte, error) {
	switch v := v.AttributeValue.(type) {
	case *types.AttributeValueMemberS:
		return json.Marshal(map[string]string{"S": v.Value})
	case *types.AttributeValueMemberN:
		return json.Marshal(map[string]string{"N": v.Value})
	case *types.AttributeValueMemberB:
		return json.Marshal(map[string][]byte{"B": v.Value})
	case *types.AttributeValueMemberBOOL:
		return json.Marshal(map[string]bool{"BOOL": v.Value})
	case *types.AttributeValueMemberM:
		return json.Marshal(map[string]Item{"M": ItemOf(v.Value)})
	case *types.AttributeValueMemberL:
		list := make([]Value, len(v.Value))
		for i := range v.Value {
			list[i] = Value{v.Value[i]}
		}
		return json.Marshal(map[string][]Value{"L": list})
	}
	return nil, fmt.Errorf("%w: %T", errType, v.AttributeValue)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (v *Value) UnmarshalJSON(text []byte) error {
	var has struct {
		S, N *string
		B    *[]byte
		BOOL *bool
		M    *Item
		L    *[]Value
	}
	if err := json.Unmarshal(text, &has); err != nil {
		return err
	}
	switch {
	case has.S != nil:
		v.AttributeValue = &types.AttributeValueMemberS{Value: *has.S}
	case has.N != nil:
		v.AttributeValue = &types.AttributeValueMemberN{Value: *has.N}
	case has.B != nil:
		v.AttributeValue = &types.AttributeValueMemberB{Value: *has.B}
	case has.BOOL != nil:
		v.AttributeValue = &types.AttributeValueMemberBOOL{Value: *has.BOOL}
	case has.M != nil:
		v.AttributeValue = &types.AttributeValueMemberM{Value: has.M.Attributes()}
	case has.L != nil:
		list := make([]types.AttributeValue, len(*has.L))
		for i, e := range *has.L {
			list[i] = e.AttributeValue
		}
		v.AttributeValue = &types.AttributeValueMemberL{Value: list}
	default:
		return fmt.Errorf("%w: %s", errType, text)
	}
	return nil
}
