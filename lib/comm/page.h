/* page.h - the page that the members of a host share, besides their arenas: barriers, the calls
 * that the ranks make, the reason of a failure, and places for small vectors.
 *
 * The leader of the host creates the page with page_init(); every other member maps it and calls
 * page_check() before it uses the page. All members run the same release on one machine, so the
 * fields are native C types; the offsets below are asserted by the compiler. A change of an offset
 * or of a meaning must increase PAGE_LAYOUT.
 *
 *   offset                  size  type    field
 *        0                     4  u32     magic: PAGE_MAGIC
 *        4                     4  u32     layout: PAGE_LAYOUT
 *        8                     8  u64     bytes: page_bytes(n_slots)
 *       16                     4  u32     n_slots: twice the ranks on this host
 *       20                     4  u32     spin
 *       24                     4  atomic  broken
 *       28                     4  u32     culprit
 *       32                   240  chars   why
 *      272                    48          unused
 *      320       128 each [n_slots]       slots: one of each rank for calls of all ranks, then
 *                                         one of each for calls of its part, each
 *                  0           4  atomic  word
 *                  4           4  atomic  sleepers
 *                  8          56          unused
 *                 64     2 x  32          calls, each
 *                              0  u64     count
 *                              8  u64     offset
 *                             16  u32     number
 *                             20  u8 x 4  what, dtype, op, spare
 *                             24  u32     root
 *                             28  u32     stride
 *     then  2 x PAGE_SMALL_BYTES each [n_slots]  places for small vectors: even calls, odd calls */
#ifndef COMM_PAGE_H
#define COMM_PAGE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/message.h"

struct err;

enum {
    PAGE_MAGIC = 0x74726e70, /* "pnrt" */
    PAGE_LAYOUT = 4,
    PAGE_SMALL_BYTES = 16 << 10,
};
/* Flags in host_slot.word; PAGE_STEP is its unit of arrivals. */
enum { PAGE_BROKEN = 1, PAGE_LEFT = 2, PAGE_STEP = 4 };

struct host_slot {
    /* Arrivals of the rank at barriers times PAGE_STEP; PAGE_LEFT: no arrival will follow;
     * PAGE_BROKEN: the generation failed, set in all slots. A futex: ranks that wait for this rank
     * sleep on it. */
    _Alignas(64) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
    _Alignas(64) struct comm_call calls[2]; /* even and odd calls */
};

struct host_page {
    uint32_t magic, layout;
    uint64_t bytes;
    uint32_t n_slots;
    uint32_t spin;           /* 1: every rank has a core: it spins before it sleeps; 0: not */
    _Atomic uint32_t broken; /* 0; 1: culprit and why are being written; 2: they can be read */
    uint32_t culprit;        /* member, or COMM_NO_MEMBER */
    char why[COMM_WHY_BYTES];
    struct host_slot slots[];
};

/* Bytes of a page, including the places for small vectors. */
size_t page_bytes(uint32_t n_slots);
/* Writes the fields that page_check() reads. `page`: page_bytes(n_slots) bytes of zeros, 64-byte
 * aligned. */
void page_init(struct host_page *page, uint32_t n_slots);
/* Validates a page that another member created. The caller has checked that page_bytes(n_slots)
 * bytes are mapped. Errors: ERR_PEER. */
int page_check(const struct host_page *page, uint32_t n_slots, struct err *err);
/* Wakes all threads that sleep on the word. */
void page_wake(_Atomic uint32_t *word);
/* Sets a flag in the slots [first, first + n) and wakes the ranks that wait for them. The word changes, so no thread
 * goes to sleep on the old value. */
void page_flag(struct host_page *page, uint32_t first, uint32_t n, uint32_t bit);
/* The generation failed: wakes all ranks of the host. The first reason is kept. n_slots: as checked by page_check(), since
 * another process can write to the page. */
void page_break(struct host_page *page, uint32_t n_slots, uint32_t culprit, const char *why);

#endif
