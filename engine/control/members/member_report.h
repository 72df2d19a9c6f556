/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wrong between this engine and those that it should see: seeds that lead to no member, and
 * engines that are refused. Plain data, filled by the control plane's thread for snapshot_inner.h.
 */
#ifndef CONTROL_MEMBER_REPORT_H
#define CONTROL_MEMBER_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "config/address_text.h"

struct control;

#define SEED_SILENT_MS 5000u /* from then on a seed that leads to no member is a finding */
#define SEED_WHY_BYTES 144
#define REFUSAL_BYTES 224
#define SEEDS_NAMED 8u    /* seeds that are named; the others are counted */
#define REFUSALS_NAMED 8u /* refused engines that are named */

struct seeds_report {
	unsigned others;   /* seeds that may lead to other engines, and sources not read yet */
	unsigned silent;   /* part of them that has led to no member for SEED_SILENT_MS */
	bool unmet;        /* this engine is alone, and no seed leads to a member: not ready */
	uint64_t unmet_ms; /* for how long */
	unsigned named;
	struct {
		char address[ADDRESS_TEXT_BYTES]; /* host:port, or the setting of a source */
		char why[SEED_WHY_BYTES];
		uint64_t ms; /* for how long */
	} seed[SEEDS_NAMED];
};
void seeds_report(const struct control *control, uint64_t now_ns, struct seeds_report *ret);

struct refusals_report {
	unsigned engines; /* that are refused, or refuse this one */
	unsigned named;
	struct {
		char from[NAME_BYTES_MAX];
		char text[REFUSAL_BYTES];
		bool theirs; /* the other engine refuses this one */
		uint64_t ms; /* for how long */
	} engine[REFUSALS_NAMED];
};
void refusals_report(const struct control *control, uint64_t now_ns, struct refusals_report *ret);

#endif
