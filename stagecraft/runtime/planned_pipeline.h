#pragma once

#include "stagecraft/partition/split.h"
#include "stagecraft/plan/make_plan.h"
#include "stagecraft/runtime/pipeline_base.h"
#include "stagecraft/runtime/pipeline_options.h"

namespace stagecraft {

/// From a plan of measured layers to a pipeline:
///
///   Pipeline run(Pipe(graph, planned_split(plan)), planned_options(plan, {.loss = loss}));
///   set_planned_recompute(run, plan);
///
/// The split at the layers where the plan's stages begin. ArgumentError if one of them has no name.
Split planned_split(const Plan& plan);

/// The options with the plan's schedule. If the plan has several replicas, the options have them,
/// too, and are for a Runner.
PipelineOptions planned_options(const Plan& plan, PipelineOptions options = {});

/// Makes the stages of this process recompute as planned.
void set_planned_recompute(PipelineBase& pipeline, const Plan& plan);

}  // namespace stagecraft
