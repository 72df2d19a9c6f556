/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that wait for room in the inbox of a rail. Control plane's thread only. */
#include "engine/control/base/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/base/control.h"

static bool outbox_keep(struct outbox *outbox, const struct rail_command *command)
{
	if (outbox->first + outbox->count == outbox->room) {
		size_t room = outbox->count * 2 + 64;
		struct rail_command *bigger = malloc(room * sizeof(*bigger));

		if (!bigger)
			return false;
		if (outbox->count)
			memcpy(bigger, outbox->command + outbox->first,
				outbox->count * sizeof(*bigger));
		free(outbox->command);
		*outbox = (struct outbox){.command = bigger, .count = outbox->count, .room = room};
	}
	outbox->command[outbox->first + outbox->count++] = *command;
	return true;
}

bool outbox_send(struct control *control, unsigned rail, const struct rail_command *command)
{
	struct outbox *outbox = &control->outbox[rail];

	if (outbox->count == 0 && rail_command_send(control->rail[rail].rail, command))
		return true;
	if (outbox_keep(outbox, command))
		return true;
	log_error("control: no memory for a command to rail %u; restart the engine", rail);
	return false;
}

bool outbox_empty(const struct control *control)
{
	for (unsigned i = 0; i < control->rails; i++)
		if (control->outbox[i].count)
			return false;
	return true;
}

unsigned outbox_flush(struct control *control)
{
	unsigned sent = 0;

	for (unsigned i = 0; i < control->rails; i++) {
		struct outbox *outbox = &control->outbox[i];

		while (outbox->count &&
			rail_command_send(control->rail[i].rail, &outbox->command[outbox->first])) {
			outbox->first++;
			outbox->count--;
			sent++;
		}
		if (outbox->count == 0)
			outbox->first = 0;
	}
	return sent;
}

void outbox_close(struct control *control)
{
	for (unsigned i = 0; i < RAILS_MAX; i++) {
		free(control->outbox[i].command);
		control->outbox[i] = (struct outbox){.count = 0};
	}
}
