package apigw_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// passed returns the part of an answer that a backend may know: all of it except for further values.
func passed(a apigw.Answer) *apigw.Answer {
	a.Values, a.ConfigStale, a.Mode, a.ShadowDenial = nil, false, "", answer.Allowed
	return &a
}

// Guarantees that a backend reads from a context what the authorizer wrote, in the form of each kind of gateway, and
// that the text of ContextCaller says the same about the caller.
func TestContextRoundTrip(t *testing.T) {
	suspended := apigw.Answer{Kind: answer.SuspendedTenant, Tenant: "a;t=b%=\r\né", Subject: "=;", KeyID: "k",
		Instance: "urn:uuid:0",
		Problem:  (&answer.Problem{Kind: answer.SuspendedTenant}).Append(nil)}
	anonymous := apigw.Answer{Kind: answer.Allowed, Anonymous: true, Plan: "public", StoreFailed: true}
	spared := limited()
	spared.Kind, spared.Instance, spared.Problem, spared.Header.RetryAfter = answer.Allowed, "", nil, ""
	spared.Mode, spared.ShadowDenial = "shadow", answer.Limited
	off := apigw.Answer{Kind: answer.Allowed, Tenant: "acme", Mode: "off"}
	for _, a := range []apigw.Answer{limited(), suspended, anonymous, spared, off} {
		e := parseEvent(t, apigw.HTTP2)
		b, err := (&apigw.Encoder{PassDenials: []string{e.API}}).Append(nil, e, &a)
		if err != nil {
			t.Fatal(err)
		}
		context := gjson.GetBytes(b, "context")
		for form, text := range map[string]string{
			"as a REST API's":            strings.ReplaceAll(context.Raw, ":true", `:"true"`),
			"as an HTTP API's":           `{"lambda":` + context.Raw + `}`,
			"with what API Gateway adds": `{"integrationLatency":12,"principalId":"x",` + context.Raw[1:],
		} {
			got, err := apigw.ReadRequestContext([]byte(`{"authorizer":` + text + `}`))
			if err != nil || !reflect.DeepEqual(got, passed(a)) {
				t.Errorf("%s: ReadRequestContext(%s)\ngot  %+v, %v\nwant %+v", form, text, got, err, passed(a))
			}
		}
		got, err := apigw.ReadCaller(context.Get(apigw.ContextCaller).Str)
		want := apigw.Answer{Kind: a.Kind, Tenant: a.Tenant, Subject: a.Subject, Plan: a.Plan, KeyID: a.KeyID,
			Anonymous: a.Anonymous, StoreFailed: a.StoreFailed}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ReadCaller(%s) = %+v, %v; want %+v", context.Get(apigw.ContextCaller).Str, got, err, want)
		}
	}
}

// Guarantees that only a text that the authorizer wrote is accepted as a decision. Otherwise a call without limits
// could reach the backend.
func TestContextsThatAreRefused(t *testing.T) {
	for _, text := range []string{
		"", "null", "[]", "1", `"x"`, "{", "{}", `{"decision":null}`, `{"decision":true}`,
		`{"decision":"ALLOWED","tenant":"a"}`,
		`{"decision":"allowed"}`, `{"decision":"allowed","tenant":""}`, `{"decision":"allowed","anonymous":"yes"}`,
		`{"decision":"allowed","tenant":"a","anonymous":true}`, `{"decision":"allowed","tenant":"a b"}`,
		`{"decision":"allowed","tenant":"%61"}`,
		`{"decision":"allowed","tenant":"a","decision":"limited"}`, `{"decision":"allowed","tenant":{"a":1}}`,
		`{"decision":"allowed","tenant":"a","rateLimit":"x\r\nSet-Cookie: a=b"}`,
		`{"decision":"allowed","tenant":"a","retryAfter":1.5}`,
		`{"lambda":{},"decision":"allowed","tenant":"a"}`, `{"lambda":null,"decision":"allowed","tenant":"a"}`,
		`{"lambda":{"lambda":{"decision":"allowed","tenant":"a"}}}`, `{"decision":"new_kind","tenant":"a"}`,
	} {
		got, err := apigw.ReadRequestContext([]byte(`{"authorizer":` + text + `}`))
		if !errors.Is(err, apigw.ErrContext) {
			t.Errorf("ReadRequestContext(%s) = %+v, %v; want ErrContext", text, got, err)
		}
	}
	for _, text := range []string{
		"", "allowed", "d=", "d=allowed", "d=allowed;t=", "d=allowed;t=a;", "d=allowed;t=a;t=b", "d=allowed;t=a;x=1",
		"d=allowed;t=a,d=limited",
		"d=allowed;t=%61", "d=allowed;t=a b", "d=allowed;t=a;a=1", "d=allowed;a=true", "t=a", "d=ALLOWED;t=a",
		" d=allowed&t=a",
		"d=allowed;t=" + strings.Repeat("a", 385), "d=allowed;t=a;f=" + strings.Repeat("1", 5000),
	} {
		if got, err := apigw.ReadCaller(text); !errors.Is(err, apigw.ErrContext) {
			t.Errorf("ReadCaller(%q) = %+v, %v; want ErrContext", text, got, err)
		}
	}
}

// Guarantees that a caller that was read is written again in the same form, and that an allowed call has a tenant or is
// anonymous.
func FuzzReadCaller(f *testing.F) {
	f.Add("d=allowed;t=acme;s=ci;p=pro;k=k1;f=1")
	f.Add("d=limited")
	f.Add("d=allowed;a=1;p=%25")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := apigw.ReadCaller(text)
		if err != nil {
			if !errors.Is(err, apigw.ErrContext) {
				t.Errorf("ReadCaller(%q): %v, want ErrContext", text, err)
			}
			return
		}
		if a.Kind == answer.Allowed && a.Tenant == "" && !a.Anonymous {
			t.Errorf("ReadCaller(%q) is allowed, but names no tenant and is not anonymous", text)
		}
		if a.Kind == answer.NoCredential || a.Kind == answer.BadCredential {
			return // never encoded: these are a 401 of the gateway's own
		}
		e := &apigw.Event{Shape: apigw.HTTP2}
		b, err := new(apigw.Encoder).Append(nil, e, &a)
		if err != nil {
			t.Fatal(err)
		}
		again, err := apigw.ReadCaller(gjson.GetBytes(b, "context."+apigw.ContextCaller).Str)
		if err != nil || !reflect.DeepEqual(again, a) {
			t.Errorf("ReadCaller(%q) = %+v; written and read again %+v, %v", text, a, again, err)
		}
	})
}

// Guarantees that no context is read as an allowed call without a caller, puts a line break into a header, or makes the
// reader panic.
func FuzzReadRequestContext(f *testing.F) {
	f.Add([]byte(`{"decision":"allowed","httpStatus":200,"tenant":"acme","rateLimit":"\"b\";r=1;t=1"}`))
	f.Add([]byte(`{"lambda":{"decision":"limited","retryAfter":"1","problem":"{}"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := apigw.ReadRequestContext(fmt.Appendf(nil, `{"authorizer":%s}`, data))
		if err != nil {
			if a != nil || !errors.Is(err, apigw.ErrContext) {
				t.Errorf("ReadRequestContext(%q) = %v, %v", data, a, err)
			}
			return
		}
		if !json.Valid(a.Body()) {
			t.Errorf("ReadRequestContext(%q).Body() = %q", data, a.Body())
		}
		if a.Kind == answer.Allowed && a.Tenant == "" && !a.Anonymous {
			t.Errorf("ReadRequestContext(%q) is allowed, but names no tenant and is not anonymous", data)
		}
		a.Header.Each(func(name, value string) {
			if strings.ContainsAny(value, "\r\n\x00") {
				t.Errorf("ReadRequestContext(%q): %s is %q", data, name, value)
			}
		})
	})
}
