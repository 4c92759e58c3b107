/* agree_message.c - see agree_message.h. */
#include "train/agree_message.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/err.h"

/* Offsets of the fields. */
enum {
    AT_VERSION = 8,
    AT_OVERLAP = 12,
    AT_STEP = 16,
    AT_INITIAL_CRC = 24,
    AT_NETWORK = 28,
    AT_MODEL = 32,
    AT_DATA = 96,
    AT_WEIGHTS = 160,
    AT_CONTENT = 192,
};

enum { N_CONTENT = 2 * AGREE_CONTENT_PARTS };
_Static_assert(AT_CONTENT + 4 * N_CONTENT == AGREE_BYTES, "the message ends with the content");

static const uint8_t magic[8] = { 'a', 'g', 'r', 'e', 'e', 'm', 'n', 't' };

static void write_digest(const char *digest, size_t digits, uint8_t *out)
{
    CHECK(strlen(digest) == digits);
    memcpy(out, digest, digits);
}

void agree_message_write(const struct agreement *a, uint8_t out[AGREE_BYTES])
{
    memset(out, 0, AGREE_BYTES);
    memcpy(out, magic, sizeof(magic));
    bytes_set_u32(out + AT_VERSION, AGREE_VERSION);
    bytes_set_u32(out + AT_OVERLAP, a->overlap);
    bytes_set_u64(out + AT_STEP, a->step);
    bytes_set_u32(out + AT_INITIAL_CRC, a->initial_crc);
    bytes_set_u32(out + AT_NETWORK, a->uses_network);
    write_digest(a->model_digest, AGREE_DIGEST_DIGITS, out + AT_MODEL);
    write_digest(a->data_digest, AGREE_DIGEST_DIGITS, out + AT_DATA);
    if (a->weights_digest[0] != '\0')
        write_digest(a->weights_digest, AGREE_WEIGHTS_DIGITS, out + AT_WEIGHTS);
    for (size_t i = 0; i < N_CONTENT; i++)
        bytes_set_u32(out + AT_CONTENT + 4 * i,
                      a->content[i / AGREE_CONTENT_PARTS][i % AGREE_CONTENT_PARTS]);
}

/* false: not hexadecimal digits. */
static bool read_digest(const uint8_t *in, size_t digits, char *out)
{
    memcpy(out, in, digits);
    out[digits] = '\0';
    return strspn(out, "0123456789abcdef") == digits;
}

int agree_message_read(const uint8_t in[AGREE_BYTES], const char *from, struct agreement *out,
                       struct err *err)
{
    static const uint8_t zeros[AGREE_WEIGHTS_DIGITS];
    uint8_t bytes[AGREE_BYTES];
    const char *field = NULL;

    memcpy(bytes, in, sizeof(bytes));
    *out = (struct agreement){ .step = bytes_get_u64(bytes + AT_STEP),
                               .initial_crc = bytes_get_u32(bytes + AT_INITIAL_CRC),
                               .overlap = bytes_get_u32(bytes + AT_OVERLAP) == 1,
                               .uses_network = bytes_get_u32(bytes + AT_NETWORK) == 1 };
    for (size_t i = 0; i < N_CONTENT; i++)
        out->content[i / AGREE_CONTENT_PARTS][i % AGREE_CONTENT_PARTS] =
            bytes_get_u32(bytes + AT_CONTENT + 4 * i);
    if (memcmp(bytes, magic, sizeof(magic)) != 0 ||
        bytes_get_u32(bytes + AT_VERSION) != AGREE_VERSION)
        field = "magic or version";
    else if (bytes_get_u32(bytes + AT_OVERLAP) > 1 || bytes_get_u32(bytes + AT_NETWORK) > 1)
        field = "flags";
    else if (out->step > INT64_MAX)
        field = "step";
    else if (!read_digest(bytes + AT_MODEL, AGREE_DIGEST_DIGITS, out->model_digest))
        field = "digest of the model";
    else if (!read_digest(bytes + AT_DATA, AGREE_DIGEST_DIGITS, out->data_digest))
        field = "digest of the training data";
    else if (memcmp(bytes + AT_WEIGHTS, zeros, sizeof(zeros)) != 0 &&
             !read_digest(bytes + AT_WEIGHTS, AGREE_WEIGHTS_DIGITS, out->weights_digest))
        field = "digest of the file of weights";
    if (field == NULL)
        return 0;
    return err_set(err, ERR_PEER, "the agreement of %s is invalid: %s", from, field);
}

void agree_print_content(const uint32_t content[AGREE_CONTENT_PARTS],
                         char out[AGREE_CONTENT_PARTS * AGREE_PART_DIGITS + 1])
{
    for (size_t i = 0; i < AGREE_CONTENT_PARTS; i++)
        snprintf(out + AGREE_PART_DIGITS * i, AGREE_PART_DIGITS + 1, "%08x", content[i]);
}
