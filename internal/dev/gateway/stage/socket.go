package stage

import (
	"crypto/sha1" //nolint:gosec // the WebSocket handshake is defined with it; nothing is protected
	"encoding/base64"
	"encoding/binary"
	"net/http"

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
)

const connectRoute = "$connect"

// upgrades reports whether a request is a WebSocket's handshake.
func upgrades(r *http.Request) bool {
	return r.Method == http.MethodGet && hasToken(r.Header["Connection"], "upgrade") &&
		hasToken(r.Header["Upgrade"], "websocket") &&
		r.Header.Get("Sec-WebSocket-Version") == "13" && r.Header.Get("Sec-WebSocket-Key") != ""
}

// tryAgain is the status of a closed connection (RFC 6455, 7.4.1 and its registry): nothing is wrong, and nothing is
// served.
const tryAgain = 1013

// connect answers a handshake that is authorized, and closes: messages are not passed here.
func (c *call) connect(w *front.Response) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		c.fail(w, failureOf(apiConfiguration)) // HTTP/2: this handshake is not defined for it
		return
	}
	// either side may have been first
	defer func() { _ = conn.Close() }()
	key := c.r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	sum := sha1.Sum([]byte(key)) //nolint:gosec // RFC 6455 prescribes it
	const reason = "connected; the local gateway passes no messages"
	frame := append([]byte{0x88, byte(2 + len(reason))}, binary.BigEndian.AppendUint16(nil, tryAgain)...)
	_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: " +
		"Upgrade\r\nSec-WebSocket-Accept: " +
		base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n" + string(frame) + reason)
	_ = buffered.Flush() // the client may be gone
}
