/* loader_priv.h - shared by the files of a loader.
 *
 *   loader.c      tables of fixed size
 *   loader_ids.c  dynamic tables
 *   loader_tensor.c  finds tensors */
#ifndef PS_LOADER_PRIV_H
#define PS_LOADER_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/rows.h"
#include "ps/background.h"
#include "ps/loader.h"
#include "ps/map.h"

enum {
    LOADER_CHUNK_BYTES = 4 << 20,
};

struct loader {
    struct ps_background base;
    struct ps_load_job job; /* its pointers, except `store`, are owned */
    uint64_t shards[PS_SET_WORDS];
    uint32_t n_parts;

    /* used by the thread alone */
    struct ckpt_rows *from; /* owned */
    float *chunk;           /* owned */
    struct err *err;
    /* the tensor in use */
    enum ckpt_shard_kind kind;
    uint32_t table, part, tensor;
    uint64_t n_rows;
    size_t row_bytes;
    bool is_dense;
    uint64_t elements; /* of a dense parameter */
};

/* ---- loader_tensor.c ---- */

/* Finds the tensor of a part of the table, which has n_rows rows. The caller may use the store. */
int loader_find_tensor(struct loader *l);

/* ---- loader_ids.c ---- */

/* Reads the dynamic table `table`. */
int loader_load_ids(struct loader *l);

#endif
