/* page.c - see page.h. */
#include "comm/page.h"

#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"

enum { SLOTS_AT = 320, SLOT_BYTES = 128 };

#define AT(type_, field_, offset_)                                                                 \
    _Static_assert(offsetof(struct type_, field_) == (offset_),                                    \
                   "page.h states this offset of " #field_)

AT(host_page, magic, 0);
AT(host_page, layout, 4);
AT(host_page, bytes, 8);
AT(host_page, n_slots, 16);
AT(host_page, spin, 20);
AT(host_page, broken, 24);
AT(host_page, culprit, 28);
AT(host_page, why, 32);
AT(host_page, slots, SLOTS_AT);
AT(host_slot, word, 0);
AT(host_slot, sleepers, 4);
AT(host_slot, calls, 64);
AT(comm_call, count, 0);
AT(comm_call, offset, 8);
AT(comm_call, number, 16);
AT(comm_call, what, 20);
AT(comm_call, dtype, 21);
AT(comm_call, op, 22);
AT(comm_call, spare, 23);
AT(comm_call, root, 24);
AT(comm_call, stride, 28);
_Static_assert(sizeof(struct host_slot) == SLOT_BYTES && sizeof(struct comm_call) == 32,
               "page.h states these sizes");
_Static_assert(sizeof(_Atomic uint32_t) == 4 && ATOMIC_INT_LOCK_FREE == 2,
               "processes share the atomics");

size_t page_bytes(uint32_t n_slots)
{
    return SLOTS_AT + n_slots * (SLOT_BYTES + (size_t)2 * PAGE_SMALL_BYTES);
}

void page_init(struct host_page *page, uint32_t n_slots)
{
    page->magic = PAGE_MAGIC;
    page->layout = PAGE_LAYOUT;
    page->bytes = page_bytes(n_slots);
    page->n_slots = n_slots;
}

int page_check(const struct host_page *page, uint32_t n_slots, struct err *err)
{
    if (page->magic != PAGE_MAGIC)
        return err_set(err, ERR_PEER, "page of this host: magic 0x%08" PRIx32 ", expected 0x%08x",
                       page->magic, (unsigned)PAGE_MAGIC);
    if (page->layout != PAGE_LAYOUT)
        return err_set(
            err, ERR_PEER,
            "page of this host: layout %u, expected %d; run the same release on every task",
            page->layout, PAGE_LAYOUT);
    if (page->n_slots != n_slots)
        return err_set(err, ERR_PEER, "page of this host: it has %u slots, expected %u",
                       page->n_slots, n_slots);
    if (page->bytes != page_bytes(n_slots))
        return err_set(err, ERR_PEER, "page of this host: %" PRIu64 " bytes, expected %zu",
                       page->bytes, page_bytes(n_slots));
    return 0;
}

void page_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void page_flag(struct host_page *page, uint32_t first, uint32_t n, uint32_t bit)
{
    for (uint32_t i = first; i < first + n; i++) {
        atomic_fetch_or(&page->slots[i].word, bit);
        page_wake(&page->slots[i].word);
    }
}

void page_break(struct host_page *page, uint32_t n_slots, uint32_t culprit, const char *why)
{
    uint32_t intact = 0;

    if (atomic_compare_exchange_strong(&page->broken, &intact, 1)) {
        page->culprit = culprit;
        snprintf(page->why, sizeof(page->why), "%s", why);
        atomic_store(&page->broken, 2);
    }
    page_flag(page, 0, n_slots, PAGE_BROKEN);
}
