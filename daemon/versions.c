/* versions.c - see versions.h. */
#include "daemon/versions.h"

#include <stdio.h>

#include "comm/handshake_message.h"
#include "comm/message.h"
#include "rdzv/wire.h"
#include "train/agree_message.h"
#include "train/transfer_chunk.h"

const char *versions_protocol(char out[VERSIONS_PROTOCOL_BYTES])
{
    snprintf(out, VERSIONS_PROTOCOL_BYTES, "control %d, data %d, life %d, agreement %d, state %d",
             WIRE_VERSION, HANDSHAKE_VERSION, MESSAGE_LIFE_VERSION, AGREE_VERSION,
             TRANSFER_CHUNK_VERSION);
    return out;
}
