package httpreceipt_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/julienschmidt/httprouter"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httpreceipt"
	"github.com/tandemhq/tandem/coord/memory"
)

// account stands for what finds out who asks.
func account(r *http.Request) string { return r.Header.Get("Account") }

// pay sends a payment of somebody and prints the answer.
func pay(h http.Handler, key, body string) {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Account", "ada")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(strings.TrimSpace(fmt.Sprint(w.Code, " ", w.Header().Get("Location"), " ", w.Header().Get("Idempotency-Replayed"))))
}

// A payment whose answer was lost is sent again, and made once.
func Example() {
	b := memory.Open(memory.Options{})
	defer func() { _ = b.Close(context.Background()) }()
	once, err := httpreceipt.New(b.Receipts(), httpreceipt.Options{Caller: account})
	if err != nil {
		fmt.Println(err)
		return
	}
	payments := 0
	mux := http.NewServeMux()
	mux.Handle("POST /payments", once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.Header().Set("Location", fmt.Sprint("/payments/", payments))
		w.WriteHeader(http.StatusCreated)
	})))

	pay(mux, `"4f1c"`, "10 to bob")
	pay(mux, `"4f1c"`, "10 to bob")
	pay(mux, `"4f1c"`, "99 to eve")
	fmt.Println(payments)
	// Output:
	// 201 /payments/1
	// 201 /payments/1 true
	// 422
	// 1
}

// A payment and the answer to it are one transaction, so that it is made once even when the process dies
// in between.
func ExampleHeld() {
	b := memory.Open(memory.Options{})
	defer func() { _ = b.Close(context.Background()) }()
	once, err := httpreceipt.New(b.Receipts(), httpreceipt.Options{Caller: account})
	if err != nil {
		fmt.Println(err)
		return
	}
	router := httprouter.New()
	router.Handler("POST", "/payments", once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held, ok := httpreceipt.Held(r.Context())
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		answer := http.Header{"Location": {"/payments/7"}}
		err := b.InTx(r.Context(), func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Publish(ctx, coord.NewEvent{Topic: "payments", Kind: "paid"}); err != nil {
				return err
			}
			return tx.CompleteReceipt(ctx, held, httpreceipt.Outcome(http.StatusCreated, answer, nil))
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		panic(http.ErrAbortHandler) // as if it died here
	})))

	func() {
		defer func() { fmt.Println(recover()) }()
		pay(router, "4f1c", "10 to bob")
	}()
	pay(router, "4f1c", "10 to bob")
	// Output:
	// net/http: abort Handler
	// 201 /payments/7 true
}
