/* types.h - what a preflight measures, and what it concludes. Plain data.
 *
 * Each task measures its own row: an entry for every other task. The entry of row i for task j
 * describes the direction from i to j, so both directions of every pair are covered. */
#ifndef PREFLIGHT_TYPES_H
#define PREFLIGHT_TYPES_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PREFLIGHT_WORLD_MAX = 1024,
    PREFLIGHT_HASH_BYTES = 72,
    PREFLIGHT_WORD_BYTES = 128,
    PREFLIGHT_TEXT_BYTES = 320,
    PREFLIGHT_NO_TASK = UINT32_MAX,
};

/* The result of a connection to a port of another task. */
enum preflight_reach {
    PREFLIGHT_UNTESTED,
    PREFLIGHT_REACHED,
    PREFLIGHT_REFUSED,    /* the host answers, no process listens */
    PREFLIGHT_SILENT,     /* no answer before the deadline */
    PREFLIGHT_UNRESOLVED, /* the name has no address */
    PREFLIGHT_FOREIGN,    /* another program answers, or a task that trains */
    PREFLIGHT_DENIED,     /* token or certificate is not accepted */
    PREFLIGHT_MISTAKEN,   /* another task, or a task of another cluster text, answers */
    PREFLIGHT_LOST,       /* the connection ended during the measurement */
    PREFLIGHT_REACHES,
};

enum preflight_check { PREFLIGHT_UNCHECKED, PREFLIGHT_GOOD, PREFLIGHT_BAD, PREFLIGHT_CHECKS };

struct preflight_entry {
    uint8_t control, data;      /* enum preflight_reach of the two ports */
    uint8_t in;                 /* 1: the other task has connected to this one */
    uint8_t large;              /* enum preflight_check: packets of full size arrive */
    uint8_t storage, lock;      /* enum preflight_check: the other task's file and lock are seen */
    uint8_t reverse;            /* enum preflight_check: the address resolves to the name;
                                   unchecked: the cluster text contains an address */
    uint32_t rtt_us;            /* shortest round trip of the control connection; 0: not measured */
    int64_t skew_us;            /* clock of the other task minus own clock; valid if rtt_us > 0 */
    uint64_t rate;              /* bytes/s to the other task; 0: not measured */
    uint32_t mtu;               /* bytes, of the route; 0: unknown */
};

/* What a task states about itself. Strings end with NUL; "" is unknown. */
struct preflight_facts {
    uint64_t nonce;         /* random, of this run of this task */
    uint32_t data_port;     /* 0: no data port is open */
    uint32_t sync_us;       /* duration of write, fsync and rename of a small file; 0: no storage */
    uint64_t open_ms;       /* duration of opening model and data; 0: not measured */
    uint64_t state_bytes;   /* weights and optimizer state; 0: not known */
    uint64_t gradient_bytes;/* all-reduced in each step; 0: not known */
    char cluster[PREFLIGHT_HASH_BYTES], job[PREFLIGHT_HASH_BYTES]; /* hashes */
    char version[PREFLIGHT_WORD_BYTES];
    char devices[PREFLIGHT_WORD_BYTES]; /* "2 cpu", "8 NVIDIA H100" */
    char kernels[2 * PREFLIGHT_WORD_BYTES];
    char listen_fault[PREFLIGHT_TEXT_BYTES];  /* the own address cannot be used; "": it can */
    char storage_fault[PREFLIGHT_TEXT_BYTES]; /* "": the storage works, or the job has none */
    char open_fault[PREFLIGHT_TEXT_BYTES];    /* model or data cannot be opened; "": they can */
};

struct preflight_row {
    bool present; /* the row was received; false: the rest is invalid */
    struct preflight_facts facts;
    struct preflight_entry *entries; /* [world]; that of the task itself is zeroed */
};

struct preflight_task { /* borrowed strings */
    const char *name;    /* "worker 1" */
    const char *address; /* as written in the cluster text */
    const char *host;    /* name or literal address */
    uint16_t port;
};

/* The input of the pure parts. */
struct preflight_table {
    uint32_t world;
    const struct preflight_task *tasks; /* [world] */
    const struct preflight_row *rows;   /* [world] */
};

enum preflight_severity {
    PREFLIGHT_NOTE,  /* training works without a change */
    PREFLIGHT_FAULT, /* a task or a pair that differs from the others, or does not work */
};

struct preflight_finding {
    enum preflight_severity severity;
    const char *what;     /* "control port", "latency", "clock", ...; static */
    uint32_t task, other; /* the outlier; other PREFLIGHT_NO_TASK: the task alone. Both
                             PREFLIGHT_NO_TASK: the whole group */
    char text[2 * PREFLIGHT_TEXT_BYTES], remedy[PREFLIGHT_TEXT_BYTES];
};

#endif
