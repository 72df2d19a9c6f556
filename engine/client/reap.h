/* SPDX-License-Identifier: Apache-2.0 */
/* Takes answers out of the rings. Channel thread. */
#ifndef CLIENT_REAP_H
#define CLIENT_REAP_H

#include <stdint.h>

struct pc_channel;

/* Takes all answers of the control plane. */
void reap_ctl(struct pc_channel *ch);

#endif
