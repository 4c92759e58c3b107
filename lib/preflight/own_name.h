/* own_name.h - whether a task can listen where the cluster text names it. Threads: any. */
#ifndef PREFLIGHT_OWN_NAME_H
#define PREFLIGHT_OWN_NAME_H

#include <stddef.h>
#include <stdint.h>

enum own_name {
    OWN_NAME_GOOD,
    OWN_NAME_UNRESOLVED, /* the name has no address, which may change */
    OWN_NAME_FOREIGN,    /* no address of the name is one of this host, which may change too */
    /* The name has loopback addresses alone, and another task is on another host, which cannot connect
     * to them: in Debian, /etc/hosts has "127.0.1.1 HOST". */
    OWN_NAME_LOOPBACK,
};

/* Resolves `host`, a name or a literal address, and, if its addresses are loopback ones, those of the
 * `others` that differ from it until one is on another host. Each name may take `ms`, all others
 * together too. Writes the reason to `why` [n] unless the result is OWN_NAME_GOOD. */
enum own_name own_name_check(const char *host, const char *const *others, uint32_t n_others,
                             uint32_t ms, char *why, size_t n);

#endif
