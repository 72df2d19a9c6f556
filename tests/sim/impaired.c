/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios of impaired networks, clocks and hosts, after which no member may have been removed. */
#include "tests/sim/run.h"
#include "tests/sim/world.h"

void lossy(void)
{
	world.loss = 0.01;
	traffic(60 * SIM_S);
	pass(2 * SIM_S);
	look_all();
	nobody_died();
}

void clocks(void)
{
	world.node[1].skew_ppm = 200;
	world.node[2].skew_ppm = -200;
	world.node[1].clock_ns = 3600 * (int64_t)SIM_S;
	traffic(10 * SIM_S);
	pass(2 * SIM_S);
	look_all();
	nobody_died();
}

void slow(void)
{
	world.node[victim()].slow_ns = 50 * SIM_MS;
	traffic(10 * SIM_S);
	pass(2 * SIM_S);
	look_all();
	nobody_died();
}
