#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "comm/comm.h"
#include "comm/handshake_message.h"

static const uint8_t key[COMM_KEY_BYTES] = "the key", other_key[COMM_KEY_BYTES] = "the kez";

static struct handshake_hello some_hello(void)
{
    struct handshake_hello h = {
        .kind = HANDSHAKE_LINK, .from = 0x01020304, .to = 7, .generation = 5
    };

    memset(h.layout, 0xaa, sizeof(h.layout));
    memset(h.nonce, 0xbb, sizeof(h.nonce));
    return h;
}

static void hello_is_written_as_the_layout_states(void **state)
{
    static const uint8_t head[40] = "trncomm\n\x07\0\0\0\x01\0\0\0\x04\x03\x02\x01\x07\0\0\0\x05";
    struct handshake_hello h = some_hello(), back;
    uint8_t bytes[HANDSHAKE_HELLO_BYTES];
    const char *why;

    (void)state;
    handshake_hello_write(&h, bytes);
    assert_memory_equal(bytes, head, 40);
    assert_memory_equal(bytes + 40, h.layout, 32);
    assert_memory_equal(bytes + 72, h.nonce, 32);
    assert_true(handshake_hello_read(bytes, &back, &why));
    assert_true(back.kind == h.kind && back.from == h.from && back.to == h.to &&
                back.generation == h.generation);
}

static void invalid_hello_is_refused_with_a_reason(void **state)
{
    static const struct {
        size_t at;
        const char *why;
    } cases[] = { { 0, "used another protocol" },
                  { 7, "used another protocol" },
                  { 8, "used another version of this protocol" },
                  { 12, "sent an invalid HELLO" },
                  { 15, "sent an invalid HELLO" },
                  { 33, "sent an invalid HELLO" } };
    struct handshake_hello h = some_hello(), back;
    uint8_t bytes[HANDSHAKE_HELLO_BYTES];
    const char *why;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        handshake_hello_write(&h, bytes);
        bytes[cases[i].at] ^= 0x40;
        assert_false(handshake_hello_read(bytes, &back, &why));
        assert_string_equal(why, cases[i].why);
    }
}

static void generations_and_layouts_are_compared(void **state)
{
    struct handshake_hello here = some_hello(), h = some_hello();

    (void)state;
    assert_int_equal(handshake_hello_compare(&h, &here), HANDSHAKE_OK);
    h.layout[31] ^= 1;
    assert_int_equal(handshake_hello_compare(&h, &here), HANDSHAKE_LAYOUT);
    h.generation = 4;
    assert_int_equal(handshake_hello_compare(&h, &here), HANDSHAKE_STALE);
    h.generation = 6;
    assert_int_equal(handshake_hello_compare(&h, &here), HANDSHAKE_EARLY);
}

static void changed_bit_invalidates_the_proofs(void **state)
{
    struct handshake_hello h = some_hello();
    struct handshake_challenge ch = { .verdict = HANDSHAKE_OK,
                                      .generation = 5,
                                      .nonce = { 1, 2, 3 } },
                               back;
    uint8_t hello[HANDSHAKE_HELLO_BYTES], challenge[HANDSHAKE_CHALLENGE_BYTES],
        proof[HANDSHAKE_PROOF_BYTES];
    bool proven;

    (void)state;
    handshake_hello_write(&h, hello);
    handshake_challenge_write(&ch, hello, key, challenge);
    handshake_proof_write(hello, challenge, key, proof);
    assert_true(handshake_challenge_read(challenge, hello, key, &back, &proven) && proven);
    assert_true(handshake_proof_check(proof, hello, challenge, key));
    for (size_t i = 0; i < sizeof(hello); i++) {
        hello[i] ^= 1;
        assert_true(handshake_challenge_read(challenge, hello, key, &back, &proven) && !proven);
        assert_false(handshake_proof_check(proof, hello, challenge, key));
        hello[i] ^= 1;
    }
    for (size_t i = 0; i < sizeof(challenge); i++) {
        challenge[i] ^= 1;
        assert_false(handshake_challenge_read(challenge, hello, key, &back, &proven) && proven);
        assert_false(handshake_proof_check(proof, hello, challenge, key));
        challenge[i] ^= 1;
    }
    assert_true(handshake_challenge_read(challenge, hello, other_key, &back, &proven) && !proven);
    assert_false(handshake_proof_check(proof, hello, challenge, other_key));
    /* The HMAC of one direction is no proof in the other. */
    assert_memory_not_equal(proof, challenge + HANDSHAKE_CHALLENGE_BYTES - HANDSHAKE_PROOF_BYTES,
                            HANDSHAKE_PROOF_BYTES);
    assert_false(handshake_proof_check(
        challenge + HANDSHAKE_CHALLENGE_BYTES - HANDSHAKE_PROOF_BYTES, hello, challenge, key));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_is_written_as_the_layout_states),
        cmocka_unit_test(invalid_hello_is_refused_with_a_reason),
        cmocka_unit_test(generations_and_layouts_are_compared),
        cmocka_unit_test(changed_bit_invalidates_the_proofs),
    };

    return cmocka_run_group_tests_name("comm/handshake_message", tests, NULL, NULL);
}
