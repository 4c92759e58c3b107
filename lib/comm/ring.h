/* ring.h - bytes from one process to another through shared memory: one direction of a channel between two
 * points of a host. Pure: no sockets, no waits.
 *
 * The writer creates the ring, and the reader maps it. Both copy the counters that they read from the page, and
 * check the copy: the other process can write anything to the page, at any time. An end that is to sleep states in
 * the page from which counter of the other end on it must be woken; ring_publish() of the other end says when.
 * One thread at a time uses an end.
 *
 *   offset        size  type    field
 *        0           8  atomic  written: bytes so far
 *        8           8  atomic  reader_wants: wake the reader when `written` is at least this; 0: it does not sleep
 *       64           8  atomic  read: bytes so far
 *       72           8  atomic  writer_wants: the same for the writer and `read`
 *     4096  RING_BYTES          byte i of the stream is at i % RING_BYTES
 *
 * Both processes run the same release on one machine. A change of the layout must increase HANDSHAKE_VERSION. */
#ifndef COMM_RING_H
#define COMM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/types.h>

struct err;

/* A ring and its two copies in user space stay in the caches of two cores. */
enum { RING_BYTES = 1 << 20 };

struct ring_page {
    _Atomic uint64_t written, reader_wants;
    _Alignas(64) _Atomic uint64_t read;
    _Atomic uint64_t writer_wants;
    _Alignas(4096) uint8_t bytes[RING_BYTES];
};

struct ring {
    struct ring_page *page; /* mapped; NULL: none */
    bool is_writer;
    uint64_t own, other; /* the counter of this end, and the last valid one of the other end */
};

/* Creates a ring, which *out writes. The caller owns *fd, and closes it after it was passed on. Errors: ERR_IO,
 * ERR_NOMEM; then *out and *fd are unchanged. */
int ring_make(struct ring *out, int *fd, struct err *err);
/* Maps a ring, which *out reads. The caller keeps fd. Errors: ERR_PEER (fd is not such memory, or can be made
 * smaller), ERR_IO, ERR_NOMEM; then *out is unchanged. */
int ring_map(int fd, struct ring *out, struct err *err);
void ring_close(struct ring *r); /* idempotent */

/* Copy up to n bytes into, or out of the ring. Return the number; 0: full, or empty; -1: the counter of the other
 * end is invalid. is_large: the bytes are part of a message that does not fit into the caches, and bypass them. */
ssize_t ring_write(struct ring *r, const void *from, size_t n);
ssize_t ring_read(struct ring *r, void *to, size_t n, bool is_large);
/* Publishes what was copied. Returns true if the other end sleeps, and must be woken. */
bool ring_publish(struct ring *r);
/* Called before this end sleeps until it can copy n bytes, 0 < n <= RING_BYTES. Returns true if that is so
 * already, or an invalid counter must be reported: the end does not sleep. */
bool ring_wait(struct ring *r, size_t n);

#endif
