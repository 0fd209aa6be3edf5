-- Argo CD's health check of an InferenceGatewayConfig, for the key
-- `resource.customizations.health.gateway.sluice.dev_InferenceGatewayConfig` of its ConfigMap argocd-cm.
--
-- Degraded: somebody has to change something. Suspended: a change waits for gateways that are started anew. Progressing:
-- the gateways have not seen it yet, or pods are not there yet.
local function health(status, message)
  return { status = status, message = message }
end

local status = obj.status
if status == nil or status.conditions == nil then
  return health("Progressing", "no gateway has reported yet")
end
if status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return health("Progressing", "no gateway has seen this generation yet")
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
-- In the order in which one is the reason of the next.
for _, kind in ipairs({ "Accepted", "ResolvedRefs", "Programmed" }) do
  local condition = conditions[kind]
  if condition ~= nil and condition.status == "False" then
    local status = condition.reason == "NeedsTakeover" and "Suspended" or "Degraded"
    return health(status, kind .. ": " .. (condition.message or condition.reason or ""))
  end
end
local ready = conditions["Ready"]
if ready == nil or ready.status ~= "True" then
  return health("Progressing", ready ~= nil and ready.message or "not ready yet")
end
return health("Healthy", (status.pods or "all") .. " pods")
