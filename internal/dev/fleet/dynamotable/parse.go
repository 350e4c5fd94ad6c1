package dynamotable

import "strings"

// parser reads an expression token by token. The first error stays in err.
type parser struct {
	text string // the whole expression
	rest string // what follows the present token
	now  string // the present token; "" at the end
	err  error
}

func newParser(text string) *parser {
	p := &parser{text: text, rest: text}
	p.next()
	return p
}

func (p *parser) fail() {
	if p.err == nil {
		p.err = invalid("the simulated table does not understand %.200q, at %.20q", p.text, p.now+p.rest)
	}
	p.now, p.rest = "", ""
}

// next goes on to the next token: an operator, a bracket, a comma, or a word.
func (p *parser) next() {
	p.rest = strings.TrimLeft(p.rest, " ")
	n := strings.IndexAny(p.rest, " ()=<>+-,")
	switch {
	case n < 0:
		n = len(p.rest)
	case n == 0 && (strings.HasPrefix(p.rest, "<=") || strings.HasPrefix(p.rest, ">=")):
		n = 2
	case n == 0:
		n = 1
	}
	p.now, p.rest = p.rest[:n], p.rest[n:]
}

// take goes on if the present token is this one, and reports whether it was.
func (p *parser) take(token string) bool {
	if p.now != token {
		return false
	}
	p.next()
	return true
}

func (p *parser) want(token string) {
	if !p.take(token) {
		p.fail()
	}
}

func parseCondition(text string) (condition, error) {
	p := newParser(text)
	c := p.any()
	if p.now != "" {
		p.fail()
	}
	return c, p.err
}

func (p *parser) any() condition {
	parts := anyOf{p.all()}
	for p.take("OR") {
		parts = append(parts, p.all())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return parts
}

func (p *parser) all() condition {
	parts := allOf{p.one()}
	for p.take("AND") {
		parts = append(parts, p.one())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return parts
}

func (p *parser) one() condition {
	switch word := p.now; word {
	case "(":
		p.next()
		c := p.any()
		p.want(")")
		return c
	case "attribute_exists", "attribute_not_exists":
		p.next()
		p.want("(")
		c := &existence{p.path(), word == "attribute_not_exists"}
		p.want(")")
		return c
	}
	c := &comparison{left: p.operand()}
	switch c.operator = p.now; c.operator {
	case "=", "<", "<=", ">", ">=":
		p.next()
	default:
		p.fail()
	}
	c.right = p.operand()
	return c
}

func (p *parser) operand() (o operand) {
	switch {
	case p.now == "if_not_exists":
		p.next()
		p.want("(")
		o.path = p.path()
		p.want(",")
		o.alias = p.alias()
		p.want(")")
	case strings.HasPrefix(p.now, ":"):
		o.alias = p.alias()
	default:
		o.path = p.path()
	}
	return o
}

func (p *parser) alias() string {
	alias := p.now
	if !strings.HasPrefix(alias, ":") {
		p.fail()
	}
	p.next()
	return alias
}

func (p *parser) path() path {
	attribute, field, nested := strings.Cut(p.now, ".")
	if attribute == "" || strings.ContainsAny(p.now, ":()=<>+-,[") || nested && (field == "" ||
		strings.Contains(field, ".")) {
		p.fail()
	}
	p.next()
	return path{attribute, field}
}

func parseUpdate(text string) (*update, error) {
	p, u := newParser(text), &update{}
	if p.take("SET") {
		u.sets = append(u.sets, p.assignment())
		for p.take(",") {
			u.sets = append(u.sets, p.assignment())
		}
	}
	if p.take("REMOVE") {
		u.removes = append(u.removes, p.path())
		for p.take(",") {
			u.removes = append(u.removes, p.path())
		}
	}
	if p.now != "" || len(u.sets)+len(u.removes) == 0 {
		p.fail()
	}
	return u, p.err
}

func (p *parser) assignment() assignment {
	a := assignment{to: p.path()}
	p.want("=")
	a.terms = append(a.terms, term{operand: p.operand()})
	for p.now == "+" || p.now == "-" {
		negative := p.now == "-"
		p.next()
		a.terms = append(a.terms, term{p.operand(), negative})
	}
	return a
}
