/* net_test.h - measurements of the network beside a running job, for Control.Netcheck. */
#ifndef DAEMON_NET_TEST_H
#define DAEMON_NET_TEST_H

struct err;
struct net_test;
struct rdzv_netcheck;
struct rdzv_netcheck_result;
struct settled;

/* `s` is borrowed. Never returns NULL (CHECK). */
struct net_test *net_test_new(const struct settled *s);
/* As rdzv_opts.netcheck; on one thread at a time. */
int net_test_perform(struct net_test *t, const struct rdzv_netcheck *q,
                     struct rdzv_netcheck_result *out, struct err *err);
/* Ends a measurement that another thread performs within 100 ms; no further one is possible. */
void net_test_stop(struct net_test *t);
void net_test_free(struct net_test *t); /* after the last net_test_perform(); NULL is allowed */

#endif
