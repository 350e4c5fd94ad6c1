package apigateway

import (
	"crypto/sha1" //nolint:gosec // the WebSocket handshake is defined with it; nothing is protected
	"encoding/base64"
	"encoding/binary"
	"net/http"

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
)

const connectRoute = "$connect"

// upgrades reports whether a request is the handshake of a WebSocket.
func upgrades(r *http.Request) bool {
	return r.Method == http.MethodGet && hasToken(r.Header["Connection"], "upgrade") &&
		hasToken(r.Header["Upgrade"], "websocket") &&
		r.Header.Get("Sec-WebSocket-Version") == "13" && r.Header.Get("Sec-WebSocket-Key") != ""
}

// tryAgain is the status in the close frame, "Try Again Later" in the registry of RFC 6455, section 7.4.1: the client
// did nothing wrong, and the gateway serves no messages.
const tryAgain = 1013

// connect answers a handshake that is authorized, and closes the connection, because the local gateway passes no
// messages.
func (c *call) connect(w *front.Response) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		c.fail(w, failureOf(apiConfiguration)) // HTTP/2, which does not have this handshake
		return
	}
	defer func() { _ = conn.Close() }() // fails if the client closed the connection first
	key := c.r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	sum := sha1.Sum([]byte(key)) //nolint:gosec // RFC 6455 prescribes it
	const reason = "connected; the local gateway passes no messages"
	frame := append([]byte{0x88, byte(2 + len(reason))}, binary.BigEndian.AppendUint16(nil, tryAgain)...)
	_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: " +
		"Upgrade\r\nSec-WebSocket-Accept: " +
		base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n" + string(frame) + reason)
	_ = buffered.Flush() // the client may be gone
}
