/* peers.h - the certificates of the clients of gRPC's connections, by descriptor.
 *
 * gRPC 1.51 names a connection that it was given as a descriptor "fd:N", and closes the descriptor
 * after the last call of the connection is freed. So N identifies the connection as long as one of
 * its calls exists. Threads: any. */
#ifndef RDZV_PEERS_H
#define RDZV_PEERS_H

#include <stdbool.h>

#include <grpc/grpc.h>

struct peers;
struct tls_peer;

struct peers *peers_new(void); /* NULL: out of memory */
/* The connection with this descriptor belongs to `peer`, of which the table takes ownership;
 * NULL: it is in clear text. Returns false if memory is lacking: the connection must be closed. */
bool peers_set(struct peers *p, int fd, struct tls_peer *peer);
/* Returns the certificate of the client; NULL: the connection is in clear text. Valid as long as the
 * call. */
const struct tls_peer *peers_of(struct peers *p, grpc_call *call);
void peers_free(struct peers *p); /* NULL is allowed */

#endif
