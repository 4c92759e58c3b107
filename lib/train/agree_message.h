/* agree_message.h - the bytes of the agreement, which the coordinator broadcasts when a generation
 * begins. Pure. Threads: any.
 *
 * Integers are little-endian. Digests are 64 lower-case hexadecimal digits.
 *
 *     offset  size  type  field
 *          0     8        magic "agreemnt"
 *          8     4  u32   version: AGREE_VERSION
 *         12     4  u32   overlap: 1: reduce while backward computes; 0: after it
 *         16     8  u64   step: every task shall hold the state after it; 0: the initial state
 *         24     4  u32   CRC-32C of the initial weights
 *         28     4  u32   network: 1: the group of the coordinator reduces over a network; 0: in one memory
 *         32    64  text  digest of the model
 *         96    64  text  digest of the training data
 *        160    32  text  digest of the file of weights, 32 digits; zeros: the job has none
 *        192   512  u32   data_content() of the training data (data/data.h)
 *        704   512  u32   of the evaluation data; zeros: the job has none */
#ifndef TRAIN_AGREE_MESSAGE_H
#define TRAIN_AGREE_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

struct err;

enum {
    AGREE_BYTES = 1216,
    AGREE_VERSION = 3,
    AGREE_DIGEST_DIGITS = 64,
    AGREE_WEIGHTS_DIGITS = 32,
    AGREE_CONTENT_PARTS = 128,
    AGREE_PART_DIGITS = 8,
};

struct agreement {
    uint64_t step;
    char model_digest[AGREE_DIGEST_DIGITS + 1];
    char data_digest[AGREE_DIGEST_DIGITS + 1];
    char weights_digest[AGREE_WEIGHTS_DIGITS + 1]; /* "": none */
    uint32_t content[2][AGREE_CONTENT_PARTS]; /* of the training data, of the evaluation data */
    uint32_t initial_crc;
    bool overlap, uses_network;
};

void agree_message_write(const struct agreement *a, uint8_t out[AGREE_BYTES]);
/* Validates every field. Copies the bytes first, because peers may be able to write to them.
 * `from`: name of the sender, for the error. Errors: ERR_PEER; then *out is undefined. */
int agree_message_read(const uint8_t in[AGREE_BYTES], const char *from, struct agreement *out,
                       struct err *err);

/* Prints the checksums of the content of a data set, as manifests have them. */
void agree_print_content(const uint32_t content[AGREE_CONTENT_PARTS],
                         char out[AGREE_CONTENT_PARTS * AGREE_PART_DIGITS + 1]);

#endif
