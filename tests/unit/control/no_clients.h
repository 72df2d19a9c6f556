/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.c and snapshot.c for tests of the links between engines, which fill the tables of upward.c
 * but have no clients: answers go nowhere, and nothing may ask for a report.
 */
#ifndef TEST_NO_CLIENTS_H
#define TEST_NO_CLIENTS_H

#include <stdlib.h>

#include "engine/control/clients/clients.h"
#include "engine/control/observe/observe.h"

void ctl_answer_now(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_done *done)
{
	(void)ctl, (void)c, (void)op, (void)done;
}

uint32_t ctl_later(
	struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op, uint32_t pages)
{
	(void)ctl, (void)c, (void)op, (void)pages;
	return CTL_NO_ANSWER;
}

void ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done)
{
	(void)ctl, (void)later, (void)done;
}

void client_deny(struct control *control, uint32_t channel, const char *text)
{
	(void)channel, (void)text;
	control->counter[COUNTER_clients_denied]++;
}

int snapshot_report(struct control *control, char **ret_text, size_t *ret_bytes)
{
	(void)control, (void)ret_text, (void)ret_bytes;
	abort();
}

#endif
