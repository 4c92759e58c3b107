/* location.h - where a task runs: a path of 1 to 4 names from the widest to the narrowest, as in
 * "zone/rack/host". The last name is the host; those before it are its rack. Tasks with equal racks reach
 * each other by a short way, so they become neighbours in the communicator (base/group_order.h).
 *
 * Pure text. An empty path: the location is not known. Threads: any. */
#ifndef BASE_LOCATION_H
#define BASE_LOCATION_H

#include <stddef.h>

struct err;

enum {
    LOCATION_PARTS = 4,
    LOCATION_PART_BYTES = 63, /* of a name; as long as a label of Kubernetes */
    LOCATION_BYTES = LOCATION_PARTS * (LOCATION_PART_BYTES + 1), /* of a path, with the NUL */
};

/* Validates a path: 1 to 4 names of 1 to 63 letters, digits, '-', '_' and '.', with a '/' between two names.
 * "" is valid. `what` names the path in the error. Errors: ERR_INPUT. */
int location_check(const char *what, const char *path, struct err *err);

/* Writes `text` as a name: other characters become '_', and what is longer is cut. text is not "". */
void location_name(const char *text, char out[LOCATION_PART_BYTES + 1]);

/* Returns the length of the rack: of the path without its last name; 0 if it has one name. */
size_t location_rack(const char *path);

/* Compares name by name: <0, 0 or >0 as a is before, equal to or after b. A path is before the paths that it
 * begins. */
int location_compare(const char *a, const char *b);

/* Returns the number of names at the beginning of a and b that are equal. */
unsigned location_common(const char *a, const char *b);

/* The variables of the environment that state a location; NULL: not set. */
struct location_env {
    const char *own;     /* TRAINERD_LOCATION: a path */
    const char *slurm;   /* SLURM_TOPOLOGY_ADDR: "switch.switch.node", see srun(1) */
    const char *pattern; /* SLURM_TOPOLOGY_ADDR_PATTERN: the kind of each part of it */
};
/* Writes the path of `own`; else that of `slurm`, its last 4 parts, in which every character that a path
 * cannot have becomes '_'; else "". *from: the name of the variable, or "". Errors: ERR_INPUT. */
int location_find(const struct location_env *env, char out[LOCATION_BYTES], const char **from,
                  struct err *err);

#endif
