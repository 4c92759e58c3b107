/* fuzz_lease.c - any bytes as the record of a lease, unchanged and with a correct checksum, to
 * reach the code after its check; also as a heartbeat. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/lease_priv.h"
#include "fuzz/driver.h"

#define BODY(members_)                                                                             \
    "{\n  \"format\": 1,\n  \"token\": 12,\n  \"rank\": 3,\n"                                      \
    "  \"name\": \"worker 3 (10.0.0.2:2222)\",\n  \"host\": \"4f2a net:[4026531840]\",\n"      \
    "  \"incarnation\": \"00c0ffee00c0ffee\",\n"                                                     \
    "  \"members\": [" members_ "],\n"
#define BEAT "00c0ffee00c0ffee 00000000000000000007 released \n"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED(BODY("")), FUZZ_SEED(BODY("0, 3, 4294967294")),
                                        FUZZ_SEED(BEAT), FUZZ_SEED("{}") };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static bool try_text(const char *text, size_t n, struct lease_record *out)
{
    struct err err;

    if (lease_record_parse(text, n, 12, out, &err) < 0) {
        CHECK(err.text[0] != '\0' && err.code < 0);
        return false;
    }
    CHECK(out->token == 12 && out->rank != LEASE_NO_RANK && out->n_members <= LEASE_MEMBERS_MAX &&
          memchr(out->name, '\0', sizeof(out->name)) != NULL);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct lease_record r, again; /* static, because they are large */
    struct buf text = { 0 };

    (void)try_text((const char *)data, size, &r); /* any result is allowed */
    buf_add(&text, data, size);
    ckpt_checksum_print(&text);
    CHECK(!text.failed);
    if (try_text(text.data, text.len, &r)) { /* an accepted record can be printed and read again */
        buf_reset(&text);
        lease_record_print(&r, &text);
        CHECK(!text.failed && text.len <= LEASE_RECORD_MAX &&
              try_text(text.data, text.len, &again));
        CHECK(again.rank == r.rank && again.incarnation == r.incarnation &&
              again.n_members == r.n_members && strcmp(again.name, r.name) == 0 &&
              memcmp(again.members, r.members, r.n_members * sizeof(r.members[0])) == 0);
    }
    (void)lease_beat_is_release((const char *)data, size, 0x00c0ffee00c0ffee);
    CHECK(lease_beat_is_release(BEAT, sizeof(BEAT) - 1, 0x00c0ffee00c0ffee));
    CHECK(!lease_beat_is_release(BEAT, sizeof(BEAT) - 1, 1));
    buf_fini(&text);
    return 0;
}
