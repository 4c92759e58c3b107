/* json.c - values of JSON documents (manifest, lease, header of safetensors), and the errors of invalid values. */
#include <inttypes.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/ckpt_priv.h"

int ckpt_unexpected(const struct json *doc, const cJSON *value, const char *expected,
                    struct err *err)
{
    char found[128];

    json_describe(doc, value, found, sizeof(found));
    json_error(doc, value, err, "expected %s, found %s", expected, found);
    return ckpt_corrupt(err);
}

int ckpt_corrupt(struct err *err)
{
    if (err != NULL)
        err->code = ERR_CORRUPT;
    return ERR_CORRUPT;
}

int ckpt_read_integer(const struct json *doc, const cJSON *value, uint64_t max, uint64_t *out,
                      struct err *err)
{
    const char *text = json_number_text(doc, value);
    char expected[64];

    if (text != NULL && text_u64(text, max, out))
        return 0;
    snprintf(expected, sizeof(expected), "an integer from 0 to %" PRIu64, max);
    return ckpt_unexpected(doc, value, expected, err);
}
