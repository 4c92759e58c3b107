/* ps.h - what a job defines about its parameter servers: plain values, which lib/conf fills and lib/ps,
 * lib/train and the daemon read. */
#ifndef OPTS_PS_H
#define OPTS_PS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which embedding tables are kept on parameter servers. */
enum ps_tables {
    PS_TABLES_LISTED, /* those that a pattern matches */
    PS_TABLES_AUTO,   /* all of at least min_shard_bytes */
    PS_TABLES_NONE,
};
/* Where the other trained parameters are. */
enum ps_dense {
    PS_DENSE_WORKERS,
    PS_DENSE_SERVERS, /* on parameter servers, which then keep all tables too */
};
enum ps_staleness {
    PS_STALENESS_EXACT,
    PS_STALENESS_BOUNDED, /* stale synchronous parallel: of asynchronous phases */
};

enum {
    PS_STALENESS_MAX = 4,
    PS_BOUND_MAX = 16, /* of PS_STALENESS_BOUNDED */
    PS_AGES = PS_BOUND_MAX + 1, /* rows are so many kinds of old: 0 steps, 1, ... */
    /* A dense parameter on parameter servers is a table with rows of so many floats; zeros follow its last float.
     * The sums of squares of its blocks of rows decide bits of the norm of the gradient. */
    PS_DENSE_WIDTH = 256,
};

struct ps_settings {
    enum ps_tables tables;
    const char **patterns; /* [n_patterns] over initializer names, for fnmatch(); of PS_TABLES_LISTED */
    uint32_t n_patterns;
    uint64_t min_shard_bytes; /* tables of fewer bytes stay on the workers; of PS_TABLES_AUTO */
    enum ps_dense dense;
    uint32_t replicas;        /* parameter servers that hold the same rows, 1..8 */
    uint32_t min_ps; /* fewest parameter servers with which the group trains, 1 to those of the cluster */
    /* exact: step t reads the rows after step max(0, t - 1 - staleness), <= PS_STALENESS_MAX; bounded: rows that may lack
     * updates of the newest `staleness` steps, 1 to PS_BOUND_MAX */
    uint32_t staleness;
    enum ps_staleness staleness_kind;
};

/* Returns whether parameters that are no tables are kept there; NULL: no. */
static inline bool ps_wants_dense(const struct ps_settings *s)
{
    return s != NULL && s->dense == PS_DENSE_SERVERS;
}

/* Returns the bound of the asynchronous phases; 0: the job has none. */
static inline uint32_t ps_bound_of(const struct ps_settings *s)
{
    return s != NULL && s->staleness_kind == PS_STALENESS_BOUNDED ? s->staleness : 0;
}

#endif
