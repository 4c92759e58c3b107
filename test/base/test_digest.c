#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/digest.h"

static void assert_hex(const uint8_t d[DIGEST_BYTES], const char *expected)
{
    char hex[DIGEST_HEX_BYTES];

    digest_hex(d, hex);
    assert_string_equal(hex, expected);
}

static void sha256_matches_the_published_values(void **state)
{
    /* FIPS 180-4, examples; the empty message */
    static const struct {
        const char *message, *hex;
    } cases[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
    };
    uint8_t d[DIGEST_BYTES];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        digest_sha256(cases[i].message, strlen(cases[i].message), d);
        assert_hex(d, cases[i].hex);
    }
}

static void hmac_matches_the_published_values(void **state)
{
    uint8_t d[DIGEST_BYTES], key[131];

    (void)state;
    /* RFC 4231, test cases 2 and 6 (a key longer than a block) */
    digest_hmac("Jefe", 4, "what do ya want for nothing?", 28, d);
    assert_hex(d, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    digest_hmac(key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First", 54, d);
    assert_hex(d, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    digest_hmac(NULL, 0, "", 0, d);
    assert_hex(d, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

static void digest_equal_detects_any_bit_difference(void **state)
{
    uint8_t a[DIGEST_BYTES], b[DIGEST_BYTES];

    (void)state;
    digest_sha256("a", 1, a);
    memcpy(b, a, sizeof(b));
    assert_true(digest_equal(a, b));
    for (int bit = 0; bit < DIGEST_BYTES * 8; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(digest_equal(a, b));
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* ---- the end of a process ---- */

static void compute_at_exit(void)
{
    uint8_t d[DIGEST_BYTES];

    digest_sha256("abc", 3, d);
}

/* Handlers of exit() run in the reverse order of their registration: a handler of libcrypto, which the digest below
 * would register, would run before this one, as it would run beside a thread that computes. */
static void run_child(void)
{
    CHECK(atexit(compute_at_exit) == 0);
    compute_at_exit();
    exit(138);
}

static void digest_during_exit_is_computed_and_keeps_the_exit_code(void **state)
{
    pid_t child = fork();
    int status = 0;

    (void)state;
    if (child == 0) {
        execl("/proc/self/exe", "test_digest", "child", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 138);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_matches_the_published_values),
        cmocka_unit_test(hmac_matches_the_published_values),
        cmocka_unit_test(digest_equal_detects_any_bit_difference),
        cmocka_unit_test(digest_during_exit_is_computed_and_keeps_the_exit_code),
    };

    (void)argv;
    if (argc > 1)
        run_child();
    return cmocka_run_group_tests_name("base/digest", tests, NULL, NULL);
}
