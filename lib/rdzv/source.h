/* source.h - the source addresses of the control port, and what the connections of each may spend.
 *
 * An allowance is a number of units that grows with time up to a maximum; frames.h states what a
 * frame costs. Each connection has its own allowance; beyond that, all connections of one address
 * share one. Pure; a table has no memory of its own. Threads: one at a time. */
#ifndef RDZV_SOURCE_H
#define RDZV_SOURCE_H

#include <stddef.h>
#include <stdint.h>

struct sockaddr_storage;

enum { SOURCES_MAX = 1024, SOURCE_TEXT_BYTES = 64 };

struct allowance {
    double saved;   /* units; negative: a debt */
    uint64_t at_ms; /* time of the last update of `saved` */
};

struct source {
    uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d; IPv6: the first 64 bits */
    uint32_t n_connections;
    struct allowance shared;
};

struct sources { /* zero-initialized */
    struct source at[SOURCES_MAX];
    uint32_t n;
};

/* Returns the record of an address, valid while n_connections > 0 and until the next call. If the
 * table is full, replaces the unused record with the oldest use. NULL: all records are in use. */
struct source *source_find(struct sources *s, const struct sockaddr_storage *from, uint64_t now_ms);
/* Writes "10.0.0.2" or "2001:db8:0:1::/64". */
void source_print(const struct source *s, char *out, size_t size);

/* Adds the units since the last update. */
void allowance_refill(struct allowance *a, uint64_t now_ms, double per_second, double max);
/* Pays the debt of *own from the shared allowance of the source, as far as that suffices. */
void source_pay(struct source *s, struct allowance *own, uint64_t now_ms);
/* Returns units that were paid to the shared allowance. */
void source_refund(struct source *s, double units);

#endif
