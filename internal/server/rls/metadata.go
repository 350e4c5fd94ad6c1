package rls

import (
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// metadata returns the dynamic metadata of a response: the request, and the metadata of the rules that were asked and
// did not deny.
func (c *call) metadata() *structpb.Struct {
	fields := map[string]*structpb.Value{"domain": structpb.NewStringValue(c.request.GetDomain())}
	var descriptors []*structpb.Value
	for _, d := range c.request.GetDescriptors() {
		if d != nil {
			descriptors = append(descriptors, structpb.NewStructValue(describe(d)))
		}
	}
	fields["descriptors"] = structpb.NewListValue(&structpb.ListValue{Values: descriptors})
	if n := c.request.GetHitsAddend(); n != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n))
	}
	merged := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := range c.items {
		it := &c.items[i]
		if it.hasCounters() && it.state != undecided && (it.state != over || it.rule.ShadowMode) {
			mergeMetadata(merged, it.rule.Metadata)
		}
	}
	if len(merged.GetFields()) > 0 {
		fields["metadata"] = structpb.NewStructValue(merged)
	}
	return &structpb.Struct{Fields: fields}
}

func describe(d *ratelimitv3.RateLimitDescriptor) *structpb.Struct {
	entries := make([]*structpb.Value, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		entries[i] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if o := d.GetLimit(); o != nil {
		text := fmt.Sprintf("requests_per_unit:%d unit:%s", o.GetRequestsPerUnit(), o.GetUnit())
		fields["limit"] = structpb.NewStringValue(text)
	}
	if n := d.GetHitsAddend(); n != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// mergeMetadata copies to dst the fields of src that dst does not have. Structs that both have are merged. Of all other
// values that both have, that of dst stays.
func mergeMetadata(dst, src *structpb.Struct) {
	for name, v := range src.GetFields() {
		old, exists := dst.GetFields()[name]
		if !exists {
			dst.Fields[name] = proto.Clone(v).(*structpb.Value) // a clone: a later merge must not change the rule
			continue
		}
		if oldStruct, newStruct := old.GetStructValue(), v.GetStructValue(); oldStruct != nil && newStruct != nil {
			mergeMetadata(oldStruct, newStruct)
		}
	}
}
