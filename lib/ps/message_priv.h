/* message_priv.h - the bytes of a message, for the files that read and write them:
 *
 *   message.c        reads
 *   message_write.c  writes */
#ifndef PS_MESSAGE_PRIV_H
#define PS_MESSAGE_PRIV_H

#include "ps/message.h"

enum {
    PS_MESSAGE_MAGIC = 0x06737074, /* "tps" and the version */
    HEAD_BYTES = 40,
    SECTION_BYTES = 16,
    HYPER_BYTES = 88,
    SETUP_COUNTS = 4,
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "fields are copied as they are in memory");

struct head {
    uint32_t magic, kind;
    uint64_t step;
    uint32_t flag, number;
    uint64_t first;
    float clip;
    uint32_t n_sections;
};

struct hyper { /* struct optim_hyper as bytes */
    double learning_rate, momentum, beta1, beta2, epsilon, weight_decay, trust_coefficient;
    uint32_t nesterov, centered;
    uint64_t step;
    float grad_scale;
    uint32_t zero;
    uint64_t zero2;
};

_Static_assert(sizeof(struct head) == HEAD_BYTES && sizeof(struct hyper) == HYPER_BYTES &&
                   sizeof(struct ps_setup_table) == 80,
               "no padding");

struct kind {
    const char *name;
    bool has_sections, has_rows, has_values, has_hyper;
    uint32_t n_sets;
};
extern const struct kind message_kinds[PS_KINDS];

#endif
